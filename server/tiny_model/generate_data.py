"""Synthetic chats for Carousel's tiny demo model.  Everything is a pure function of the seed.

  python generate_data.py --docs 1000 --seed 1 --out sample.jsonl     write documents (messages, tools, skill)
  python generate_data.py --eval 40 --out eval.jsonl                  held-out evaluation set, 40 prompts a skill
  python generate_data.py --selftest                                  renderer == jinja template, basic statistics

A document is {"messages": [...], "tools": [...] or None, "skill": str}; every assistant turn is a training target.
Held out from training (made with ev=True only): the names in NAMES_HELD as names of persons and pets, and the operand pairs,
made-up words and tool names whose hash falls in 1/16.  That separation is not strict: word problems and swapped subtractions
do not look at the hash, and held() falls back to any draw after 60 tries.
"""

import argparse
import json
import os
import random
import zlib

from chatfmt import TEMPLATE, dumps, render

W = str.split
ROBUST = os.environ.get("TINY_DATA", "1") == "2"  # second data set: arbitrary names, words and code (train.py --data 2)
# ------------------------------------------------------------------------------------------------ word lists
NAMES = W(
    "Maya Tom Lena Omar Sofia Ben Nina Raj Ella Hugo Iris Leo Zoe Karl Anna Felix Clara Paul Emma Noah Mia Luca Sara Erik Julia Max Laura Finn Rosa Adam Nora Ivan Alice Bob Carol David Eva Frank Grace Henry Ines Jack Kate Liam Mona Oscar Petra Quinn Ruth Sam Tina Uma Victor Wendy Yara Zack Amir Bella Chen Dana Elif Fatima George Hana Igor Jonas Kira Lars Marta Niko Olga Pablo Rita Stefan Tara Ugo Vera Walter Ximena Yusuf Aisha Boris Cora Diego Emil Freya Gina Harald Ida Jin Kofi Lily Mateo Naomi Otto Priya Rafael Selma Theo Ursula Vince Willa Yuki Zara José Zoë Chloé Björn André Noël"
)
NAMES_HELD = W("Martin Sandra Peter Monica Robin Daniel Teresa Conrad Silvia Marcus")
COLOURS = W("red blue green yellow orange purple pink black white brown grey teal violet gold silver turquoise")
CITIES = W(
    "Paris Rome Berlin Madrid Oslo Vienna Lisbon Prague Dublin Tokyo Cairo Lima Delhi Seoul Athens Boston Chicago Toronto Sydney Munich Hamburg Zurich Geneva Milan Naples Lyon Porto Seville Nairobi Havana Kyoto Osaka Bergen Malmö Córdoba Bogotá"
)
FOODS = W(
    "pizza pasta soup sushi rice salad cake bread cheese curry noodles tacos pancakes dumplings chocolate burgers stew waffles"
)
ANIMALS = W(
    "dog cat horse cow rabbit fox bear lion tiger wolf owl mouse duck goat sheep frog snake whale penguin monkey elephant zebra camel parrot turtle"
)
HOBBIES = W(
    "chess painting hiking cooking swimming reading dancing singing cycling fishing gardening photography climbing running sailing"
)
JOBS = W("teacher nurse pilot farmer baker doctor writer painter plumber lawyer engineer carpenter chef driver tailor")
MONTHS = W("January February March April May June July August September October November December")
DAYS = W("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
FRUITS = W("apple banana cherry grape lemon mango orange peach pear plum kiwi melon")
LISTS = {
    "fruits": FRUITS,
    "animals": W("dog cat horse cow sheep lion tiger bear wolf fox rabbit mouse"),
    "colours": W("red blue green yellow orange purple pink black white brown grey teal"),
    "vegetables": W("carrot potato tomato onion pepper spinach cabbage broccoli pea bean radish leek"),
    "countries": W("France Germany Spain Italy Japan Brazil Canada Egypt India Kenya Norway Peru"),
    "sports": W("football tennis basketball swimming running cycling rowing boxing golf hockey skiing volleyball"),
    "instruments": W("piano guitar violin flute drum trumpet harp cello clarinet organ banjo saxophone"),
    "tools": W("hammer saw screwdriver wrench drill pliers chisel file level axe ladder shovel"),
    "birds": W("eagle owl robin sparrow crow swan duck parrot penguin pigeon heron stork"),
    "trees": W("oak pine maple birch willow elm cedar ash beech fir poplar chestnut"),
    "flowers": W("rose tulip daisy lily violet orchid poppy iris lotus jasmine sunflower lavender"),
    "drinks": W("water tea coffee milk juice lemonade cocoa soda cider smoothie"),
    "clothes": W("shirt trousers jacket hat scarf gloves socks shoes dress coat belt skirt"),
    "vehicles": W("car bus train bicycle truck boat plane tram scooter ship helicopter taxi"),
    "planets": W("Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune"),
    "shapes": W("circle square triangle rectangle oval star pentagon hexagon cube sphere"),
    "rooms": W("kitchen bedroom bathroom hall office cellar attic garage pantry library"),
}
CAPITALS = dict(
    p.split(":")
    for p in "France:Paris;Germany:Berlin;Italy:Rome;Spain:Madrid;Portugal:Lisbon;Austria:Vienna;Norway:Oslo;Sweden:Stockholm;Denmark:Copenhagen;Finland:Helsinki;Poland:Warsaw;Greece:Athens;Ireland:Dublin;Belgium:Brussels;the Netherlands:Amsterdam;Switzerland:Bern;Hungary:Budapest;Romania:Bucharest;Bulgaria:Sofia;Ukraine:Kyiv;Turkey:Ankara;Egypt:Cairo;Kenya:Nairobi;Japan:Tokyo;China:Beijing;India:New Delhi;South Korea:Seoul;Thailand:Bangkok;Vietnam:Hanoi;Indonesia:Jakarta;Australia:Canberra;New Zealand:Wellington;Canada:Ottawa;Mexico:Mexico City;Cuba:Havana;Peru:Lima;Chile:Santiago;Argentina:Buenos Aires;Brazil:Brasília;Colombia:Bogotá;Iceland:Reykjavík;the Czech Republic:Prague;Slovakia:Bratislava;Croatia:Zagreb;Serbia:Belgrade;Slovenia:Ljubljana;Estonia:Tallinn;Latvia:Riga;Lithuania:Vilnius;Morocco:Rabat;Ghana:Accra;Ethiopia:Addis Ababa;Iran:Tehran;Iraq:Baghdad;Nepal:Kathmandu;Mongolia:Ulaanbaatar;the Philippines:Manila;the United Kingdom:London;the United States:Washington, D.C.".split(
        ";"
    )
)
OPP = dict(
    p.split(":")
    for p in "hot:cold;big:small;up:down;left:right;day:night;open:closed;fast:slow;old:new;happy:sad;light:dark;wet:dry;high:low;hard:soft;early:late;full:empty;good:bad;long:short;near:far;rich:poor;strong:weak;clean:dirty;loud:quiet;heavy:light;inside:outside;first:last;young:old;thick:thin;wide:narrow;deep:shallow;true:false;win:lose;buy:sell;push:pull;start:stop;love:hate;always:never;above:below;front:back;give:take;remember:forget;sharp:blunt;sweet:sour;safe:dangerous;smooth:rough;brave:afraid;awake:asleep;alive:dead;rise:fall;summer:winter;north:south;east:west;question:answer;friend:enemy;morning:evening;begin:end;tall:short;noisy:silent;polite:rude;simple:complex;tight:loose".split(
        ";"
    )
)
THINGCOL = dict(
    p.split(":")
    for p in "the sky:blue;grass:green;snow:white;coal:black;a banana:yellow;a tomato:red;a carrot:orange;milk:white;chocolate:brown;the sun:yellow;blood:red;an elephant:grey;a flamingo:pink;an eggplant:purple;a lemon:yellow;a frog:green;a raven:black;ivory:white;a pumpkin:orange;a fire truck:red;the sea:blue;a leaf in spring:green;a polar bear:white;rust:brown;a sapphire:blue;a ruby:red;an emerald:green".split(
        ";"
    )
)
SOUND = dict(
    p.split(":")
    for p in "dog:woof;cat:meow;cow:moo;sheep:baa;duck:quack;pig:oink;horse:neigh;lion:roar;frog:croak;mouse:squeak;bee:buzz;owl:hoot;snake:hiss;wolf:howl;hen:cluck;crow:caw".split(
        ";"
    )
)
BABY = dict(
    p.split(":")
    for p in "dog:puppy;cat:kitten;cow:calf;sheep:lamb;horse:foal;hen:chick;duck:duckling;bear:cub;lion:cub;goat:kid;pig:piglet;frog:tadpole;swan:cygnet;deer:fawn;kangaroo:joey;owl:owlet".split(
        ";"
    )
)
SYMBOL = dict(
    p.split(":")
    for p in "hydrogen:H;helium:He;carbon:C;nitrogen:N;oxygen:O;sodium:Na;iron:Fe;gold:Au;silver:Ag;copper:Cu;lead:Pb;zinc:Zn;tin:Sn;calcium:Ca;potassium:K;neon:Ne;sulfur:S;chlorine:Cl;mercury:Hg;uranium:U".split(
        ";"
    )
)
MISC = dict(
    p.split(":")
    for p in "How many days are in a week?:There are 7 days in a week.:7;How many months are in a year?:There are 12 months in a year.:12;How many hours are in a day?:There are 24 hours in a day.:24;How many minutes are in an hour?:There are 60 minutes in an hour.:60;How many legs does a spider have?:A spider has 8 legs.:8;How many legs does an insect have?:An insect has 6 legs.:6;How many wheels does a bicycle have?:A bicycle has 2 wheels.:2;How many sides does a triangle have?:A triangle has 3 sides.:3;How many sides does a square have?:A square has 4 sides.:4;How many sides does a hexagon have?:A hexagon has 6 sides.:6;How many letters are in the English alphabet?:There are 26 letters in the English alphabet.:26;How many continents are there?:There are 7 continents.:7;How many planets are in the solar system?:There are 8 planets in the solar system.:8;What is the largest planet?:The largest planet is Jupiter.:Jupiter;What is the smallest planet?:The smallest planet is Mercury.:Mercury;Which planet is known as the red planet?:The red planet is Mars.:Mars;Which planet do we live on?:We live on Earth.:Earth;What is the largest ocean?:The largest ocean is the Pacific Ocean.:Pacific;What is the longest river in Africa?:The longest river in Africa is the Nile.:Nile;What is the highest mountain?:The highest mountain is Mount Everest.:Everest;At what temperature does water boil?:Water boils at 100 °C.:100;At what temperature does water freeze?:Water freezes at 0 °C.:0;What do bees make?:Bees make honey.:honey;What do cows give us to drink?:Cows give us milk.:milk;What is frozen water called?:Frozen water is called ice.:ice;What gas do plants take in?:Plants take in carbon dioxide.:carbon dioxide;What gas do we breathe in to live?:We breathe in oxygen.:oxygen;What is the largest animal?:The largest animal is the blue whale.:whale;What is the fastest land animal?:The fastest land animal is the cheetah.:cheetah;What is the tallest animal?:The tallest animal is the giraffe.:giraffe;Who wrote Hamlet?:William Shakespeare wrote Hamlet.:Shakespeare;Who painted the Mona Lisa?:Leonardo da Vinci painted the Mona Lisa.:Leonardo;What language is spoken in Brazil?:People speak Portuguese in Brazil.:Portuguese;What language is spoken in Austria?:People speak German in Austria.:German;What language is spoken in Mexico?:People speak Spanish in Mexico.:Spanish;What language is spoken in Egypt?:People speak Arabic in Egypt.:Arabic;What is the currency of Japan?:The currency of Japan is the yen.:yen;What is the currency of the United Kingdom?:The currency of the United Kingdom is the pound.:pound;What is the currency of Germany?:The currency of Germany is the euro.:euro;What is the currency of India?:The currency of India is the rupee.:rupee;What season comes after winter?:Spring comes after winter.:spring;What season comes after spring?:Summer comes after spring.:summer;What season comes after summer?:Autumn comes after summer.:autumn;What season comes after autumn?:Winter comes after autumn.:winter;Where does the sun rise?:The sun rises in the east.:east;Where does the sun set?:The sun sets in the west.:west;What is the square root of 9?:The square root of 9 is 3.:3;What is the square root of 16?:The square root of 16 is 4.:4;What is the square root of 25?:The square root of 25 is 5.:5;What is the square root of 81?:The square root of 81 is 9.:9;What is half of a dozen?:Half of a dozen is 6.:6;What do you call a young person?:A young person is called a child.:child;What is H2O?:H2O is water.:water;What is the first letter of the alphabet?:The first letter of the alphabet is A.:A;What is the last letter of the alphabet?:The last letter of the alphabet is Z.:Z".split(
        ";"
    )
    for p in [p.split(":", 1)[0] + ":" + p.split(":", 1)[1].replace(":", "\x00")]
)
TRANS = {
    l: dict(p.split(":") for p in s.split(";"))
    for l, s in {
        "French": "cat:chat;dog:chien;house:maison;water:eau;bread:pain;book:livre;sun:soleil;moon:lune;tree:arbre;apple:pomme;red:rouge;blue:bleu;friend:ami;school:école;night:nuit;summer:été;coffee:café;boy:garçon;one:un;two:deux;three:trois;hello:bonjour;thank you:merci;yes:oui;no:non",
        "German": "cat:Katze;dog:Hund;house:Haus;water:Wasser;bread:Brot;book:Buch;sun:Sonne;moon:Mond;tree:Baum;apple:Apfel;red:rot;blue:blau;friend:Freund;school:Schule;night:Nacht;summer:Sommer;coffee:Kaffee;boy:Junge;one:eins;two:zwei;three:drei;hello:hallo;thank you:danke;yes:ja;no:nein;green:grün;door:Tür",
        "Spanish": "cat:gato;dog:perro;house:casa;water:agua;bread:pan;book:libro;sun:sol;moon:luna;tree:árbol;apple:manzana;red:rojo;blue:azul;friend:amigo;school:escuela;night:noche;summer:verano;coffee:café;boy:niño;one:uno;two:dos;three:tres;hello:hola;thank you:gracias;yes:sí;no:no",
    }.items()
}
NUMW = W(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty"
)
NOUNS = W(
    "apple house river stone cloud table garden window candle mirror bottle basket ladder engine pencil rocket bridge castle forest island mountain valley harbor market station lantern blanket button carpet compass feather hammer jacket kettle letter magnet needle oyster packet rabbit saddle ticket tunnel velvet wagon anchor barrel copper dragon falcon goblet helmet icicle jungle kitten lemon monkey nickel orchid pepper quartz ribbon silver temple violin walnut yogurt zipper"
)
VERBS = W("walks runs looks jumps sings sleeps waits reads writes paints swims climbs drives dances laughs cooks")
ADJ = W("small big red blue old new quiet bright dark happy green cold warm soft round gentle clever brave tiny golden")
WORDS = sorted(
    set(
        NOUNS
        + FRUITS
        + ANIMALS
        + COLOURS
        + W(
            "cat dog sun sea sky cup hat pen box bus car map key bed egg ice ant bee owl pig rat toy jam net oak pan rug tea van wax yak zoo star moon tree book door fish bird ship rain snow wind fire gold hand foot nose lamp leaf milk nest pond road rope sand seed song wall wood yarn light water bread chair music paper plant smile tiger train world"
        )
    )
)
SYL = "ba be bi bo bu da de di do du fa fe fi fo ga go ka ke ki ko la le li lo lu ma me mi mo mu na ne ni no ra re ri ro ru sa se si so ta te ti to va ve vi vo za ze zo zu".split()
EMOJI = list("😀🎉🚀🌍🐱🐶🍎⭐🔥💡🎵🌈🍕⚽🌙❤👍🦊🐢🌸")
CJK = list("你好世界日本東京山川水火木金土月人大小中国語学生先生猫犬花海空雨雪春夏秋冬今天明天朋友茶米")
OTHER = W(
    "naïve café déjà über größe señor mañana façade crème brûlée smörgåsbord Привет мир спасибо こんにちは ありがとう 안녕하세요 ευχαριστώ שלום مرحبا ñandú żółw češka dobrý çok güzel"
)


def h16(*a):
    """Stable hash to 0..15; class 0 is held out for evaluation."""
    return zlib.crc32(repr(a).encode()) % 16


def held(r, ev, make, key=None, tries=60):
    """Draw from make() until the draw is in (ev) or out of (not ev) the held-out hash class."""
    for _ in range(tries):
        v = make()
        if (h16(key(v) if key else v) == 0) == ev:
            return v
    return v


def free_word(r, lo=1, hi=3):
    """Any pronounceable or unpronounceable word: forces copying of token sequences never seen before."""
    if r.random() < 0.2:
        return "".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(r.randint(3, 9)))
    C, V, E = (
        W("b c d f g h j k l m n p r s t v w z br ch cl cr dr fl gr kn pl pr qu sc sh sl sp st th tr wh"),
        W("a e i o u a e i o ai ea ee ie oo ou"),
        W("_ _ _ b d l m n n r r s t ck ft ld ll lm mp nd ng nk nn ns nt rd rk rl rn rt sh ss st th x y"),
    )
    return "".join(
        (r.choice(C) if i or r.random() < 0.8 else "") + r.choice(V) + r.choice(E).strip("_")
        for i in range(r.randint(lo, hi))
    )


def made_word(r, ev, lo=2, hi=4):
    if ROBUST and not ev and r.random() < 0.5:
        return free_word(r)
    return held(r, ev, lambda: "".join(r.choice(SYL) for _ in range(r.randint(lo, hi))))


def name(r, ev):
    if ev:
        return r.choice(NAMES_HELD)
    if ROBUST and r.random() < 0.5:
        return free_word(r).capitalize()
    return r.choice(NAMES) if r.random() < 0.75 else made_word(r, ev, 2, 3).capitalize()


def sentence(r):
    n, v = r.choice(NOUNS), r.choice(VERBS)
    k = r.randrange(7)
    if k == 0:
        return f"The {r.choice(ADJ)} {r.choice(ANIMALS)} {v} near the {n}."
    if k == 1:
        return f"{r.choice(NAMES)} {v} to the {r.choice(ADJ)} {n}."
    if k == 2:
        return f"There are {r.randint(2, 99)} {n}s in {r.choice(CITIES)}."
    if k == 3:
        return f"Every {r.choice(DAYS)} the {r.choice(JOBS)} {v} with a {n}."
    if k == 4:
        return f"{r.choice(NAMES)} and {r.choice(NAMES)} like {r.choice(FOODS)} and {r.choice(HOBBIES)}."
    if k == 5:
        return f"In {r.choice(MONTHS)} the {n} was {r.choice(ADJ)} and {r.choice(ADJ)}."
    return f"A {r.choice(COLOURS)} {n} costs {r.randint(1, 500)} coins."


def randstr(r):
    k = r.randrange(7)
    if k == 0:
        return "".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(r.randint(3, 9)))
    if k == 1:
        return "".join(r.choice("0123456789abcdef") for _ in range(r.randint(4, 12)))
    if k == 2:
        return "".join(r.choice(CJK) for _ in range(r.randint(2, 8)))
    if k == 3:
        return "".join(r.choice(EMOJI) for _ in range(r.randint(1, 5)))
    if k == 4:
        return " ".join(r.choice(OTHER) for _ in range(r.randint(1, 4)))
    if k == 5:
        return "-".join(r.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") + str(r.randint(1, 999)) for _ in range(r.randint(1, 3)))
    return r.choice(["#", "@", "§", "→", "✓", "€", "£", "…"]) + r.choice(WORDS)


def phrase(r, lo=2, hi=6):
    return " ".join(r.choice(WORDS) for _ in range(r.randint(lo, hi)))


def free_code(r):
    """Lines of Python-like code with nested indentation, put together at random."""
    w = lambda: r.choice(WORDS) if r.random() < 0.5 else free_word(r, 1, 2)
    n = lambda: r.choice([str(r.randint(0, 99)), w(), f"{w()}[{r.randint(0, 9)}]", f'"{w()}"', f"{w()}.{w()}"])
    out, d = [], 0
    for _ in range(r.randint(2, 9)):
        k = r.randrange(10)
        x = "    " * d
        if k < 3 and d < 3:
            out.append(
                x
                + r.choice(
                    [
                        f"def {w()}({', '.join(w() for _ in range(r.randint(0, 3)))}):",
                        f"for {w()} in {r.choice(['range(' + n() + ')', w(), 'enumerate(' + w() + ')'])}:",
                        f"if {n()} {r.choice(['==', '<', '>', '!=', 'in'])} {n()}:",
                        f"while {w()}:",
                        f"class {w().capitalize()}:",
                        f"with open({n()}) as f:",
                        "try:",
                        "else:",
                    ]
                )
            )
            d += 1
        else:
            out.append(
                x
                + r.choice(
                    [
                        f"{w()} = {n()} {r.choice('+-*/')} {n()}",
                        f"print({', '.join(n() for _ in range(r.randint(1, 3)))})",
                        f"return {n()}",
                        f"{w()}.append({n()})",
                        f"{w()} += {n()}",
                        f"import {w()}",
                        f"# {w()} {w()} {w()}",
                        f"{w()}({n()}, {w()}={n()})",
                        f"{w()} = [{n()}, {n()}]",
                        "pass",
                        f"assert {n()}",
                        "",
                    ]
                )
            )
            if d and r.random() < 0.35:
                d -= r.randint(1, d)
    return "\n".join(out).strip() or "pass"


def code(r):
    if ROBUST and r.random() < 0.6:
        return free_code(r)
    a, b, c = r.sample(WORDS, 3)
    n = r.randint(2, 50)
    k = r.randrange(8)
    if k == 0:
        return f"def {a}({b}, {c}):\n    return {b} {r.choice('+-*')} {c}"
    if k == 1:
        return f"for {a} in range({n}):\n    if {a} % {r.randint(2, 9)} == 0:\n        print({a})"
    if k == 2:
        return f"def {a}({b}):\n    total = 0\n    for x in {b}:\n        total += x * {n}\n    return total"
    if k == 3:
        return f'import {r.choice(["os", "sys", "json", "math", "time"])}\n\n{a} = {n}\nwhile {a} > 0:\n    {a} -= 1\nprint("{b}", {a})'
    if k == 4:
        return f"class {a.capitalize()}:\n    def __init__(self, {b}):\n        self.{b} = {b}\n\n    def {c}(self):\n        return self.{b} + {n}"
    if k == 5:
        return f"SELECT {a}, {b}\nFROM {c}\nWHERE {a} > {n}\nORDER BY {b};"
    if k == 6:
        return f"function {a}({b}) {{\n  const {c} = {b} * {n};\n  return {c};\n}}"
    return f'#!/bin/sh\nfor f in *.{a}; do\n  echo "$f"\n  cp "$f" {b}/{c}\ndone'


# ------------------------------------------------------------------------------------------------ single questions
# every function returns dict(u=user, a=answer, s=short answer or None, k=skill, raw=True when the case of u matters)
def Q(u, a, k, s=None, raw=False):
    return dict(u=u, a=a, k=k, s=s, raw=raw)


CHAT = [
    (["Hi", "Hello", "Hey", "Hello there", "Hi there", "Good day", "Greetings"], ["Hello! How can I help you?"]),
    (["Good morning", "Good morning to you"], ["Good morning! How can I help you?"]),
    (["Good evening", "Good evening to you"], ["Good evening! How can I help you?"]),
    (
        ["How are you?", "How are you today?", "How do you do?", "How is it going?", "Are you well?"],
        ["I am fine, thank you. How can I help you?"],
    ),
    (
        [
            "Who are you?",
            "What are you?",
            "What is your name?",
            "Tell me about yourself.",
            "Introduce yourself.",
            "Please introduce yourself.",
            "Which model are you?",
            "What should I call you?",
        ],
        ["I am Carousel's tiny demo model, a very small language model for tests."],
    ),
    (
        ["Who made you?", "Who built you?", "Who created you?", "Where do you come from?", "Who trained you?"],
        ["The Carousel project trained me from scratch on synthetic text."],
    ),
    (
        [
            "What can you do?",
            "What can you help me with?",
            "How can you help me?",
            "What are your skills?",
            "What do you know?",
        ],
        [
            "I can chat a little, add small numbers, remember what you tell me, repeat text, tell short stories and call tools."
        ],
    ),
    (
        ["Are you a human?", "Are you a person?", "Are you real?", "Are you a robot?", "Are you an AI?"],
        [
            "No, I am a small computer program, not a person.",
        ],
    ),
    (
        ["How big are you?", "How many parameters do you have?", "How large are you?"],
        ["I am tiny: I have about fourteen million parameters."],
    ),
    (["Thank you", "Thanks", "Thanks a lot", "Thank you very much", "Many thanks"], ["You are welcome!"]),
    (["Bye", "Goodbye", "See you later", "Good night", "See you tomorrow", "Take care"], ["Goodbye! Have a nice day."]),
    (
        ["Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Say something funny."],
        ["Why did the computer sneeze? It had a virus."],
    ),
    (
        ["I am sad.", "I feel sad today.", "I am not happy.", "I had a bad day."],
        ["I am sorry to hear that. I hope you feel better soon."],
    ),
    (["I am happy.", "I feel great today.", "I had a good day."], ["That is great to hear!"]),
    (["I am bored.", "I have nothing to do.", "This is boring."], ["Shall I tell you a short story?"]),
    (["I am tired.", "I am so tired today.", "I need some sleep."], ["Then you should rest a little."]),
    (["I am hungry.", "I want to eat something.", "What should I eat?"], ["How about some soup and fresh bread?"]),
    (
        [
            "Do you like music?",
            "Do you like dogs?",
            "Do you like pizza?",
            "Do you like me?",
            "Do you sleep?",
            "Do you dream?",
        ],
        ["I am only a small model, so I have no feelings about that."],
    ),
    (
        ["Can you help me?", "I need help.", "Please help me.", "Help", "Help me please"],
        ["Of course. What do you need?"],
    ),
    (["Sorry", "I am sorry.", "Excuse me", "Pardon me"], ["No problem."]),
    (["Ok", "Okay", "Fine", "Great", "Nice", "Cool", "Good", "Perfect"], ["Good. What else can I do for you?"]),
    (["Yes", "Yes please", "Sure"], ["Good. Please tell me more."]),
    (["No", "No thanks", "No thank you", "Not now"], ["Okay. Just ask when you need something."]),
    (["Test", "Testing", "This is a test.", "Ping", "Are you there?", "Can you hear me?"], ["I am here and ready."]),
    (
        ["How old are you?", "When were you born?", "What is your age?"],
        ["I am a very new model, so I have no real age."],
    ),
    (["Where are you?", "Where do you live?", "Where do you run?"], ["I run inside the Carousel server."]),
    (
        ["What language do you speak?", "Which languages do you know?", "Do you speak English?"],
        ["I speak simple English and know a few foreign words."],
    ),
    (["What is the meaning of life?", "Why are we here?"], ["That is a big question for such a small model."]),
    (["Sing a song.", "Sing something.", "Can you sing?"], ["La la la! That is all I can sing."]),
    (
        ["Write a poem.", "Tell me a poem.", "Do you know a poem?", "Write a short poem."],
        [
            "The sun is bright, the sky is blue,\nthe birds all sing a song for you.\nThe day is long, the grass is green,\nthe finest day we have ever seen."
        ],
    ),
    (
        ["Give me some advice.", "Any advice?", "Give me a tip."],
        ["Drink enough water, sleep well and be kind to others."],
    ),
    (
        ["You are great.", "You are very helpful.", "Well done!", "Good job!", "Good answer."],
        ["Thank you, that is kind of you."],
    ),
    (
        ["You are stupid.", "That is wrong.", "Bad answer.", "That was not correct."],
        ["I am sorry. I am only a tiny model and I make mistakes."],
    ),
    (
        ["What is Carousel?", "Tell me about Carousel.", "What does Carousel do?"],
        ["Carousel is a server that runs language models such as me."],
    ),
]
UNKNOWN = [
    "Who won the {n} race in {y}?",
    "What is the price of {n} stock today?",
    "Explain the theory of {n} fields.",
    "Who is the president of {c}?",
    "How many people live in {c}?",
    "What happened in {y}?",
    "Write an essay about the {n} economy.",
    "How do I repair a {n}?",
    "What is the phone number of the {n} shop?",
    "When was the {n} invented?",
    "Why is the {n} so {j}?",
    "What is the chemical formula of {n}?",
    "Prove that {n} is {j}.",
    "Who invented the {n}?",
    "What is the best {n} to buy?",
    "Tell me the latest news about {c}.",
    "How tall is the {n} tower?",
    "Which film won the prize in {y}?",
    "What will happen in {y}?",
    "How do I cook a {n}?",
]
IDK = "Sorry, I do not know that. I am only a tiny demo model."


def q_chat(r, ev):
    us, as_ = r.choice(CHAT)
    u = r.choice(us)
    if u[-1] not in ".?!" and r.random() < 0.5:
        u += r.choice([".", "!", "!"])
    return Q(u, r.choice(as_), "smalltalk")


def q_unknown(r, ev):
    return Q(
        r.choice(UNKNOWN).format(
            n=r.choice(NOUNS), y=r.randint(1500, 2030), c=r.choice(list(CAPITALS)), j=r.choice(ADJ)
        ),
        IDK,
        "unknown",
    )


ADD = [
    "What is {a} + {b}?",
    "{a} + {b}",
    "{a}+{b}",
    "{a} + {b} = ?",
    "What is {a} plus {b}?",
    "Add {a} and {b}.",
    "Calculate {a} + {b}.",
    "How much is {a} + {b}?",
    "Compute {a} plus {b}.",
    "What is the sum of {a} and {b}?",
    "Can you add {a} and {b}?",
    "What do you get if you add {b} to {a}?",
    "{a} plus {b} is?",
    "Solve: {a} + {b}",
]
SUB = [
    "What is {a} - {b}?",
    "{a} - {b}",
    "{a}-{b}",
    "{a} - {b} = ?",
    "What is {a} minus {b}?",
    "Subtract {b} from {a}.",
    "Calculate {a} - {b}.",
    "How much is {a} - {b}?",
    "Compute {a} minus {b}.",
    "Take {b} away from {a}.",
    "{a} minus {b} is?",
    "What is the difference of {a} and {b}?",
    "Solve: {a} - {b}",
]
MUL = [
    "What is {a} * {b}?",
    "{a} * {b}",
    "{a} x {b}",
    "{a} × {b} = ?",
    "What is {a} times {b}?",
    "Multiply {a} by {b}.",
    "Calculate {a} * {b}.",
    "How much is {a} times {b}?",
    "Compute {a} × {b}.",
    "What is the product of {a} and {b}?",
    "{a} times {b} is?",
    "Solve: {a} * {b}",
]
DIV = [
    "What is {a} / {b}?",
    "What is {a} divided by {b}?",
    "Divide {a} by {b}.",
    "{a} / {b} = ?",
    "How much is {a} divided by {b}?",
    "{a} ÷ {b}",
]


def q_arith(r, ev, op=None, digits=None):
    op = op or r.choices("+-*/", [5, 4, 3, 1])[0]
    hi = {1: 9, 2: 99, 3: 999}[digits or r.choices([1, 2, 3], [1, 5, 4])[0]]
    if op in "+-":
        a, b = held(
            r,
            ev,
            lambda: (r.randint(0, hi), r.randint(0, hi if r.random() < 0.7 else min(hi, 99))),
            key=lambda v: (op, v),
        )
        if op == "-" and a < b and r.random() < 0.8:
            a, b = b, a
        v = a + b if op == "+" else a - b
        t = ADD if op == "+" else SUB
        full = f"{a} {op} {b} = {v}"
    elif op == "*":
        if ROBUST and not ev and r.random() < 0.5:
            a, b = r.randint(0, 12), r.randint(0, 12)  # the whole small table
        else:
            a, b = held(
                r,
                ev,
                lambda: (
                    (r.randint(0, 12), r.randint(0, 12)) if r.random() < 0.6 else (r.randint(2, 99), r.randint(2, 9))
                ),
                key=lambda v: (op, v),
            )
        v = a * b
        t = MUL
        full = f"{a} × {b} = {v}"
    else:
        b, v = (
            (r.randint(1, 12), r.randint(0, 12))
            if ROBUST
            else held(r, ev, lambda: (r.randint(1, 12), r.randint(0, 12)), key=lambda v: (op, v))
        )
        a = b * v
        t = DIV
        full = f"{a} ÷ {b} = {v}"
    u = r.choice(t).format(a=a, b=b)
    k = "arithmetic_3digit" if hi == 999 and op in "+-" else "arithmetic"
    if r.random() < 0.12:
        return Q(
            u + r.choice([" Only the number, please.", " Just the number.", " Reply with the number only."]),
            str(v),
            k,
            str(v),
        )
    return Q(u, full + ".", k, str(v))


def q_word(r, ev):
    n = name(r, ev)
    a = r.randint(2, 50)
    b = r.randint(1, 49)
    it = r.choice(FRUITS + W("book coin pencil card stamp egg"))
    s = "es" if it in ("peach",) else "s"
    it = "cherrie" if it == "cherry" else it
    k = r.randrange(3)
    if k == 0:
        u = r.choice(
            [
                f"{n} has {a} {it}{s} and gets {b} more. How many {it}{s} does {n} have now?",
                f"{n} had {a} {it}{s}. Then {n} found {b} more. How many are there now?",
                f"If {n} has {a} {it}{s} and buys {b} more, how many {it}{s} is that?",
            ]
        )
        return Q(u, f"{a} + {b} = {a + b}, so {n} has {a + b} {it}{s}.", "word_problem", str(a + b))
    if k == 1:
        a, b = max(a, b), min(a, b)
        u = r.choice(
            [
                f"{n} has {a} {it}{s} and gives away {b}. How many {it}{s} are left?",
                f"{n} had {a} {it}{s} and ate {b}. How many are left?",
                f"From {a} {it}{s} {n} loses {b}. How many {it}{s} remain?",
            ]
        )
        return Q(u, f"{a} - {b} = {a - b}, so {n} has {a - b} {it}{s}.", "word_problem", str(a - b))
    a, b = r.randint(2, 12), r.randint(2, 9)
    u = r.choice(
        [
            f"There are {a} boxes with {b} {it}{s} each. How many {it}{s} are there?",
            f"{n} buys {a} bags and each bag holds {b} {it}{s}. How many {it}{s} is that?",
        ]
    )
    return Q(u, f"{a} × {b} = {a * b}, so there are {a * b} {it}{s}.", "word_problem", str(a * b))


UNITS = [
    ("kilometers", "meters", 1000, 60),
    ("meters", "centimeters", 100, 60),
    ("centimeters", "millimeters", 10, 99),
    ("kilograms", "grams", 1000, 60),
    ("hours", "minutes", 60, 24),
    ("minutes", "seconds", 60, 20),
    ("days", "hours", 24, 14),
    ("weeks", "days", 7, 20),
    ("years", "months", 12, 15),
    ("feet", "inches", 12, 12),
    ("liters", "milliliters", 1000, 30),
    ("tons", "kilograms", 1000, 30),
    ("dozens", "pieces", 12, 12),
    ("decades", "years", 10, 30),
    ("centuries", "years", 100, 30),
]


def q_unit(r, ev):
    a, b, f, m = r.choice(UNITS)
    n = r.randint(2, m)
    u = r.choice(
        [
            "How many {b} are {n} {a}?",
            "Convert {n} {a} to {b}.",
            "What is {n} {a} in {b}?",
            "{n} {a} in {b}?",
            "How many {b} are in {n} {a}?",
            "Please convert {n} {a} into {b}.",
            "Express {n} {a} in {b}.",
        ]
    ).format(a=a, b=b, n=n)
    return Q(u, f"{n} {a} are {n * f} {b}.", "units", str(n * f))


def q_fact(r, ev):
    k = r.choices(range(9), [6, 2, 4, 3, 2, 2, 2, 5, 3])[0]
    if k == 0:
        c = r.choice(list(CAPITALS))
        v = CAPITALS[c]
        dot = "" if v.endswith(".") else "."
        u = r.choice(
            [
                "What is the capital of {c}?",
                "Which city is the capital of {c}?",
                "Tell me the capital of {c}.",
                "Name the capital city of {c}.",
                "capital of {c}?",
                "Do you know the capital of {c}?",
                "What's the capital of {c}?",
                "The capital of {c} is?",
                "What is the capital city of {c}?",
            ]
        ).format(c=c)
        return Q(u, f"The capital of {c} is {v}{dot}", "facts", v)
    if k == 1:
        c = r.choice(list(CAPITALS))
        v = CAPITALS[c]
        return Q(
            r.choice(
                [
                    f"{v} is the capital of which country?",
                    f"Of which country is {v} the capital?",
                    f"Which country has {v} as its capital?",
                ]
            ),
            f"{v} is the capital of {c}.",
            "facts",
            c,
        )
    if k == 2:
        a = r.choice(list(OPP))
        b = OPP[a]
        return Q(
            r.choice(
                [
                    "What is the opposite of {a}?",
                    "opposite of {a}?",
                    "Give me the opposite of {a}.",
                    "What is the contrary of {a}?",
                    "Tell me the opposite of the word {a}.",
                    "Which word means the opposite of {a}?",
                ]
            ).format(a=a),
            f"The opposite of {a} is {b}.",
            "facts",
            b,
        )
    if k == 3:
        a = r.choice(list(THINGCOL))
        b = THINGCOL[a]
        return Q(
            r.choice(
                [
                    "What colour is {a}?",
                    "Which colour does {a} have?",
                    "What is the colour of {a}?",
                    "What color is {a}?",
                    "Tell me the colour of {a}.",
                ]
            ).format(a=a),
            f"{a[0].upper() + a[1:]} is {b}.",
            "facts",
            b,
        )
    if k == 4:
        a = r.choice(list(SOUND))
        return Q(
            r.choice(
                [
                    "What sound does a {a} make?",
                    "What does a {a} say?",
                    "Which sound does the {a} make?",
                    "How does a {a} sound?",
                ]
            ).format(a=a),
            f"A {a} says {SOUND[a]}.".replace("A owl", "An owl"),
            "facts",
            SOUND[a],
        )
    if k == 5:
        a = r.choice(list(BABY))
        return Q(
            r.choice(
                [
                    "What is a baby {a} called?",
                    "What do you call a baby {a}?",
                    "What is the young of a {a} called?",
                    "How do you call a young {a}?",
                ]
            ).format(a=a),
            f"A baby {a} is called a {BABY[a]}.".replace("a owlet", "an owlet"),
            "facts",
            BABY[a],
        )
    if k == 6:
        a = r.choice(list(SYMBOL))
        return Q(
            r.choice(
                [
                    "What is the chemical symbol of {a}?",
                    "What is the symbol for {a}?",
                    "Chemical symbol of {a}?",
                    "Which symbol does {a} have?",
                ]
            ).format(a=a),
            f"The chemical symbol of {a} is {SYMBOL[a]}.",
            "facts",
            SYMBOL[a],
            raw=True,
        )
    if k == 7:
        u = r.choice(list(MISC))
        a, s = MISC[u].split("\x00")
        return Q(u, a, "facts", s)
    l = r.choice(list(TRANS))
    w = r.choice(list(TRANS[l]))
    t = TRANS[l][w]
    return Q(
        r.choice(
            [
                "What is {w} in {l}?",
                "Translate {w} to {l}.",
                "How do you say {w} in {l}?",
                "What is the {l} word for {w}?",
                "Translate the word {w} into {l}.",
            ]
        ).format(w=w, l=l),
        f'In {l}, {w} is "{t}".',
        "facts",
        t,
    )


def q_calendar(r, ev):
    k = r.randrange(5)
    L, what = (DAYS, "day") if r.random() < 0.55 else (MONTHS, "month")
    i = r.randrange(len(L))
    n = len(L)
    if k < 2:
        return Q(
            r.choice(
                [
                    f"Which {what} comes after {L[i]}?",
                    f"What comes after {L[i]}?",
                    f"What {what} is after {L[i]}?",
                    f"Which {what} follows {L[i]}?",
                ]
            ),
            f"{L[(i + 1) % n]} comes after {L[i]}.",
            "calendar",
            L[(i + 1) % n],
        )
    if k < 4:
        return Q(
            r.choice(
                [f"Which {what} comes before {L[i]}?", f"What comes before {L[i]}?", f"What {what} is before {L[i]}?"]
            ),
            f"{L[i - 1]} comes before {L[i]}.",
            "calendar",
            L[i - 1],
        )
    o = W("first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth")[i]
    return Q(
        f"What is the {o} {what} of the {'week' if what == 'day' else 'year'}?",
        f"The {o} {what} of the {'week' if what == 'day' else 'year'} is {L[i]}.",
        "calendar",
        L[i],
    )


def q_letters(r, ev):
    k = r.randrange(9)
    w = r.choice(WORDS)
    AL = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    short = r.choice([x for x in WORDS if len(x) <= 6])
    if k in (0, 1):
        return Q(
            r.choice(["Spell the word {w}.", "How do you spell {w}?", "Spell {w}.", "Please spell {w} for me."]).format(
                w=w
            ),
            f"{w.capitalize()} is spelled {'-'.join(w.upper())}.",
            "letters",
            "-".join(w.upper()),
        )
    if k in (2, 3):
        return Q(
            r.choice(
                [
                    "Reverse the word {w}.",
                    "Write {w} backwards.",
                    "What is {w} spelled backwards?",
                    "Say {w} in reverse.",
                ]
            ).format(w=short),
            f"{short} backwards is {short[::-1]}.",
            "letters",
            short[::-1],
        )
    if k == 4:
        return Q(
            r.choice(
                [
                    "How many letters does {w} have?",
                    "How many letters are in the word {w}?",
                    "Count the letters of {w}.",
                ]
            ).format(w=w),
            f"The word {w} has {len(w)} letters.",
            "letters",
            str(len(w)),
        )
    if k == 5:
        return Q(
            r.choice(["What is the first letter of {w}?", "With which letter does {w} start?"]).format(w=w),
            f"The first letter of {w} is {w[0].upper()}.",
            "letters",
            w[0].upper(),
        )
    if k == 6:
        return Q(
            r.choice(["What is the last letter of {w}?", "With which letter does {w} end?"]).format(w=w),
            f"The last letter of {w} is {w[-1].upper()}.",
            "letters",
            w[-1].upper(),
        )
    i = r.randrange(26)
    if k == 7 and i < 25:
        return Q(
            r.choice(
                [
                    f"Which letter comes after {AL[i]}?",
                    f"What letter is after {AL[i]}?",
                    f"What is the letter after {AL[i]}?",
                ]
            ),
            f"{AL[i + 1]} comes after {AL[i]}.",
            "letters",
            AL[i + 1],
            raw=True,
        )
    if k == 8 and i > 0:
        return Q(
            r.choice([f"Which letter comes before {AL[i]}?", f"What letter is before {AL[i]}?"]),
            f"{AL[i - 1]} comes before {AL[i]}.",
            "letters",
            AL[i - 1],
            raw=True,
        )
    return Q(
        r.choice([f"What is {w} in upper case?", f"Write {w} in capital letters.", f"Convert {w} to upper case."]),
        f"{w.upper()}",
        "letters",
        w.upper(),
    )


def q_count(r, ev):
    k = r.randrange(8)
    if k == 0:
        n = r.choice([5, 10, 12, 15, 20, 25, 30]) if r.random() < 0.8 else r.randint(3, 60)
        return Q(
            r.choice(
                [
                    f"Count to {n}.",
                    f"Count from 1 to {n}.",
                    f"Please count up to {n}.",
                    f"List the numbers from 1 to {n}.",
                ]
            ),
            ", ".join(map(str, range(1, n + 1))) + ".",
            "counting",
        )
    if k == 1:
        n = r.randint(3, 30)
        return Q(
            r.choice([f"Count down from {n}.", f"Count backwards from {n} to 1.", f"Count down from {n} to 1."]),
            ", ".join(map(str, range(n, 0, -1))) + ".",
            "counting",
        )
    if k == 2:
        a = r.randint(2, 80)
        b = a + r.randint(2, 20)
        return Q(
            r.choice([f"Count from {a} to {b}.", f"List the numbers from {a} to {b}."]),
            ", ".join(map(str, range(a, b + 1))) + ".",
            "counting",
        )
    if k == 3:
        n = r.randint(2, 12)
        return Q(
            r.choice(
                [
                    f"Write the multiplication table of {n}.",
                    f"Show me the times table of {n}.",
                    f"Give me the table of {n}.",
                ]
            ),
            "\n".join(f"{n} × {i} = {n * i}" for i in range(1, 11)),
            "counting",
        )
    if k == 4:
        n = r.choice([10, 20, 30, 40])
        e = r.random() < 0.5
        return Q(
            f"List the {'even' if e else 'odd'} numbers up to {n}.",
            ", ".join(map(str, range(2 if e else 1, n + 1, 2))) + ".",
            "counting",
        )
    if k == 5:
        n = r.randint(0, 20)
        return Q(
            r.choice(
                [f"Write the number {n} as a word.", f"How do you write {n} in words?", f"Spell out the number {n}."]
            ),
            f"{n} is written as {NUMW[n]}.",
            "counting",
            NUMW[n],
        )
    if k == 6:
        return Q(
            r.choice(
                [
                    "Say the alphabet.",
                    "Write the alphabet.",
                    "List the letters of the alphabet.",
                    "Recite the alphabet.",
                ]
            ),
            "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
            "counting",
        )
    w = r.choice(WORDS)
    n = r.randint(2, 8)
    return Q(
        r.choice([f"Say {w} {n} times.", f"Repeat the word {w} {n} times.", f"Write {w} {n} times."]),
        " ".join([w] * n),
        "counting",
    )


def q_numbers(r, ev):
    hi = r.choice([20, 100, 1000])
    L = r.sample(range(1, hi), r.randint(3, 6))
    s = ", ".join(map(str, L))
    k = r.randrange(6)
    if k == 0:
        return Q(
            r.choice(
                [
                    f"Which number is the largest: {s}?",
                    f"What is the largest number in {s}?",
                    f"Find the maximum of {s}.",
                ]
            ),
            f"The largest number is {max(L)}.",
            "numbers",
            str(max(L)),
        )
    if k == 1:
        return Q(
            r.choice(
                [
                    f"Which number is the smallest: {s}?",
                    f"What is the smallest number in {s}?",
                    f"Find the minimum of {s}.",
                ]
            ),
            f"The smallest number is {min(L)}.",
            "numbers",
            str(min(L)),
        )
    if k == 2:
        return Q(
            r.choice(
                [f"Sort these numbers: {s}", f"Sort {s} from small to large.", f"Put these numbers in order: {s}"]
            ),
            ", ".join(map(str, sorted(L))) + ".",
            "numbers",
        )
    if k == 3:
        n = r.randint(0, 999)
        e = "even" if n % 2 == 0 else "odd"
        return Q(r.choice([f"Is {n} even or odd?", f"Is the number {n} odd or even?"]), f"{n} is {e}.", "numbers", e)
    if k == 4:
        a, b = r.sample(range(1, hi), 2)
        return Q(
            r.choice([f"Which is larger, {a} or {b}?", f"Which is bigger: {a} or {b}?", f"What is more, {a} or {b}?"]),
            f"{max(a, b)} is larger than {min(a, b)}.",
            "numbers",
            str(max(a, b)),
        )
    n = r.randint(0, 998)
    return Q(
        r.choice([f"What number comes after {n}?", f"Which number follows {n}?", f"What comes after {n}?"]),
        f"{n + 1} comes after {n}.",
        "numbers",
        str(n + 1),
    )


def q_list(r, ev):
    c = r.choice(list(LISTS))
    n = r.randint(2, min(10, len(LISTS[c])))
    L = LISTS[c][:n]
    k = r.randrange(3)
    nw = NUMW[n] if r.random() < 0.3 else n
    base = r.choice(
        [f"List {nw} {c}", f"Name {nw} {c}", f"Give me {nw} {c}", f"Tell me {nw} {c}", f"Write down {nw} {c}"]
    )
    if k == 0:
        return Q(base + ".", "\n".join(f"{i}. {x}" for i, x in enumerate(L, 1)), "listing")
    if k == 1:
        return Q(
            base + r.choice([" as bullets.", " as a bullet list.", " with bullet points."]),
            "\n".join(f"- {x}" for x in L),
            "listing",
        )
    return Q(base + r.choice([" in one line.", " separated by commas.", " with commas."]), ", ".join(L), "listing")


def q_echo(r, ev, long=False):
    if long:
        n = r.randint(4, 22)
        t = r.choice([" ", " ", "\n"]).join(sentence(r) for _ in range(n))
        u = r.choice(
            [
                "Copy the following text exactly:\n\n{t}",
                "Repeat this text word for word:\n\n{t}",
                "{t}\n\nRepeat the text above.",
                "Write this text again without changes:\n\n{t}",
                "Please copy this passage:\n{t}",
            ]
        ).format(t=t)
        return Q(u, t, "copy_long", raw=True)
    k = r.randrange(7)
    t = (
        phrase(r)
        if k == 0
        else sentence(r)
        if k == 1
        else randstr(r)
        if k in (2, 3)
        else " ".join(randstr(r) for _ in range(r.randint(2, 5)))
        if k == 4
        else f"{name(r, ev)} {r.choice(VERBS)} {randstr(r)}"
        if k == 5
        else " ".join(made_word(r, ev) for _ in range(r.randint(1, 5)))
    )
    u = r.choice(
        [
            "Repeat after me: {t}",
            "Say: {t}",
            "Repeat: {t}",
            "Echo: {t}",
            "Echo this text: {t}",
            "Please repeat exactly: {t}",
            "Write exactly this: {t}",
            "Repeat the following: {t}",
            "Say exactly: {t}",
            "Copy this: {t}",
            "Repeat this sentence: {t}",
        ]
    ).format(t=t)
    return Q(u, t, "echo", raw=True)


def q_code(r, ev):
    if r.random() < 0.4:
        c = code(r)
        return Q(
            r.choice(
                [
                    "Repeat this code:\n```\n{c}\n```",
                    "Copy this code exactly:\n```\n{c}\n```",
                    "Print this code again:\n```\n{c}\n```",
                ]
            ).format(c=c),
            f"```\n{c}\n```",
            "code",
            raw=True,
        )
    f = r.choice(
        ["add", "subtract", "multiply", "double", "square", "max", "greet", "even", "sum", "count", "hello", "loop"]
    )
    n = made_word(r, ev, 2, 3) if r.random() < 0.6 else None
    fn = n or {"add": "add", "max": "larger", "even": "is_even", "sum": "total", "count": "count_items"}.get(f, f)
    d, c = {
        "add": ("adds two numbers", "def {n}(a, b):\n    return a + b"),
        "subtract": ("subtracts two numbers", "def {n}(a, b):\n    return a - b"),
        "multiply": ("multiplies two numbers", "def {n}(a, b):\n    return a * b"),
        "double": ("doubles a number", "def {n}(x):\n    return 2 * x"),
        "square": ("squares a number", "def {n}(x):\n    return x * x"),
        "max": ("returns the larger of two numbers", "def {n}(a, b):\n    if a > b:\n        return a\n    return b"),
        "greet": ("greets a person", 'def {n}(name):\n    print("Hello, " + name + "!")'),
        "even": ("checks if a number is even", "def {n}(x):\n    return x % 2 == 0"),
        "sum": (
            "sums a list of numbers",
            "def {n}(items):\n    total = 0\n    for x in items:\n        total += x\n    return total",
        ),
        "count": (
            "counts the items of a list",
            "def {n}(items):\n    count = 0\n    for x in items:\n        count += 1\n    return count",
        ),
        "hello": ("prints hello world", 'def {n}():\n    print("Hello, world!")'),
        "loop": ("prints the numbers from 1 to n", "def {n}(n):\n    for i in range(1, n + 1):\n        print(i)"),
    }[f]
    u = r.choice(
        [
            "Write a Python function that {d}.",
            "Give me a Python function that {d}.",
            "Please write Python code that {d}.",
            "Show me a Python function that {d}.",
        ]
    ).format(d=d)
    if n:
        u = u[:-1] + r.choice([f" and is called {n}.", f". Name it {n}.", f". Call it {n}."])
    return Q(u, f"```python\n{c.format(n=fn)}\n```", "code")


def q_json(r, ev):
    ks = r.sample(
        ["name", "age", "city", "colour", "count", "active", "title", "price", "id", "tags", "pet", "food"],
        r.randint(2, 4),
    )
    o = {}
    for k in ks:
        o[k] = {
            "name": lambda: name(r, ev),
            "age": lambda: r.randint(1, 99),
            "city": lambda: r.choice(CITIES),
            "colour": lambda: r.choice(COLOURS),
            "count": lambda: r.randint(0, 500),
            "active": lambda: r.random() < 0.5,
            "title": lambda: phrase(r, 1, 3),
            "price": lambda: r.randint(1, 999) / 10,
            "id": lambda: r.choice("ABCDEFG") + str(r.randint(10, 999)),
            "tags": lambda: r.sample(WORDS, 2),
            "pet": lambda: r.choice(ANIMALS),
            "food": lambda: r.choice(FOODS),
        }[k]()
    d = (
        r.choice([", ".join, " and ".join])([f"{k} {v if isinstance(v, str) else dumps(v)}" for k, v in o.items()])
        if r.random() < 0.5
        else ", ".join(f"{k} = {v if isinstance(v, str) else dumps(v)}" for k, v in o.items())
    )
    return Q(
        r.choice(
            [
                "Write a JSON object with {d}.",
                "Give me JSON with {d}.",
                "Make a JSON object: {d}",
                "Return this as JSON: {d}",
            ]
        ).format(d=d),
        dumps(o),
        "json",
        raw=True,
    )


def q_read(r, ev):
    """Small reading comprehension: people with attributes."""
    ps = held(r, False, lambda: [name(r, ev) for _ in range(r.randint(2, 4))])
    ps = list(dict.fromkeys(ps))
    F = []
    for p in ps:
        F.append(
            (
                p,
                dict(
                    city=r.choice(CITIES),
                    pet=r.choice(ANIMALS),
                    food=r.choice(FOODS),
                    job=r.choice(JOBS),
                    n=r.randint(2, 90),
                    hobby=r.choice(HOBBIES),
                ),
            )
        )
    t = " ".join(
        " ".join(
            r.sample(
                [
                    f"{p} lives in {f['city']}.",
                    f"{p} works as a {f['job']}.",
                    f"{p} has a {f['pet']}.",
                    f"{p} likes {f['food']}.",
                    f"{p} is {f['n']} years old.",
                    f"{p} enjoys {f['hobby']}.",
                ],
                6,
            )[:]
        )
        for p, f in F
    )
    p, f = r.choice(F)
    k = r.choice(list(f))
    q, a = {
        "city": (f"Where does {p} live?", f"{p} lives in {f['city']}."),
        "pet": (f"Which pet does {p} have?", f"{p} has a {f['pet']}."),
        "food": (f"What does {p} like to eat?", f"{p} likes {f['food']}."),
        "job": (f"What is the job of {p}?", f"{p} works as a {f['job']}."),
        "n": (f"How old is {p}?", f"{p} is {f['n']} years old."),
        "hobby": (f"What does {p} enjoy?", f"{p} enjoys {f['hobby']}."),
    }[k]
    if r.random() < 0.3:
        q, a = {
            "city": (f"Who lives in {f['city']}?", f"{p} lives in {f['city']}."),
            "n": (f"Who is {f['n']} years old?", f"{p} is {f['n']} years old."),
        }.get(k, (q, a))
        if sum(x[1].get(k) == f[k] for x in F) > 1:
            q, a = f"Where does {p} live?", f"{p} lives in {f['city']}."
    return Q(
        r.choice(["{t}\n\n{q}", "{q}\n\n{t}", "Read this text: {t}\n\n{q}", "Text: {t}\nQuestion: {q}"]).format(
            t=t, q=q
        ),
        a,
        "reading",
        raw=True,
    )


def q_lookup(r, ev, n=None):
    n = n or int(8 * (8 ** r.random()))
    ks = list(
        dict.fromkeys(
            (made_word(r, False) if r.random() < 0.4 else r.choice(WORDS) + "-" + str(r.randint(1, 99)))
            for _ in range(n)
        )
    )
    vs = [
        r.choice([str(r.randint(10, 9999)), r.choice(WORDS), r.choice("ABCDEFGH") + str(r.randint(10, 999))])
        for _ in ks
    ]
    i = r.randrange(len(ks))
    sep = r.choice([": ", " = ", " -> "])
    t = "\n".join(k + sep + v for k, v in zip(ks, vs))
    q = r.choice(
        ["What is the value of {k}?", "Look up {k}.", "Which value belongs to {k}?", "Find the entry {k}."]
    ).format(k=ks[i])
    return Q(
        r.choice(["Here is a list:\n{t}\n\n{q}", "{t}\n\n{q}", "Use this table.\n{t}\n\n{q}"]).format(t=t, q=q),
        f"The value of {ks[i]} is {vs[i]}.",
        "lookup",
        vs[i],
        raw=True,
    )


def q_story(r, ev):
    n = name(r, ev)
    a = r.choice(ANIMALS)
    p = r.choice(["forest", "village", "castle", "island", "mountain", "garden", "harbor", "valley"])
    o = r.choice(W("lantern key map bell ring book coin feather mirror stone"))
    j = r.choice(W("small brave clever gentle happy quiet young curious"))
    f = r.choice(NAMES)
    b = r.choice(ANIMALS)
    z = zlib.crc32((a + p + o).encode())
    pick = lambda L, i: L[(z >> (3 * i)) % len(L)]
    S = [
        f"Once upon a time there was a {j} {a} called {n}.",
        pick(
            [
                f"{n} lived in a {p} far away from the big city.",
                f"The home of {n} was a quiet {p} near the sea.",
                f"{n} lived alone at the edge of a {p}.",
            ],
            0,
        ),
        pick(
            [
                f"One morning {n} found an old {o} under a tree.",
                f"One day {n} saw a golden {o} in the river.",
                f"One evening a stranger gave {n} a strange {o}.",
            ],
            1,
        ),
        pick(
            [
                f"The {o} began to shine and showed a path into the dark.",
                f"The {o} was warm and made a soft sound.",
                f"Nobody knew who had lost the {o}.",
            ],
            2,
        ),
        pick(
            [
                f"{n} took the {o} and walked for three days.",
                f"{n} wanted to find the owner of the {o}.",
                f'"I must find out what this {o} can do," said {n}.',
            ],
            3,
        ),
        f"On the way {n} met a {b} with the name {f}.",
        pick(
            [
                f'"I know this {o}," said {f}. "It belongs to the old queen."',
                f'"Please help me," said {f}. "I cannot find my way home."',
                f'"That {o} is magic," said {f}. "Be careful with it."',
            ],
            4,
        ),
        pick(
            [
                f"Together they crossed the {p} and climbed a high hill.",
                "They walked together through rain and wind.",
                "So they shared some bread and went on together.",
            ],
            5,
        ),
        pick(
            [
                f"At the top they saw a light, and the {o} opened a hidden door.",
                f"In the night the {o} showed them the right way.",
                f"When they were lost, the {o} lit up the road.",
            ],
            6,
        ),
        pick(
            [
                "Behind the door the old queen was waiting and thanked them.",
                f"At last they found the house of {f}, and everybody was glad.",
                f"The people of the {p} danced and sang until the morning.",
            ],
            7,
        ),
        pick(
            [
                f"From that day on {n} and {f} were best friends.",
                f"{n} and {f} never forgot that day.",
                f"{n} kept the {o} and helped many others.",
            ],
            8,
        ),
        "And they lived happily ever after.",
    ]
    m = r.random()
    if m < 0.4:
        return Q(
            r.choice(
                [
                    "Tell me a story about a {j} {a} called {n}, a {o} and a {p}.",
                    "Write a short story about {n} the {j} {a}, who finds a {o} in a {p}.",
                    "Tell a story with a {j} {a} named {n}, a {p} and a {o}.",
                ]
            ).format(j=j, a=a, n=n, o=o, p=p),
            " ".join(S),
            "story",
        )
    if m < 0.7:
        return Q(
            r.choice(
                [
                    "Tell me a story about a {a}.",
                    "Write a story about a {a}.",
                    "I want to hear a story about a {a}.",
                    "Can you tell me a story about a {a}?",
                ]
            ).format(a=a),
            " ".join(S),
            "story",
        )
    if m < 0.85:
        return Q(
            r.choice(
                [
                    "Tell me a story.",
                    "Tell me a short story.",
                    "Write a short story.",
                    "A story, please.",
                    "Can you tell me a story?",
                ]
            ),
            " ".join(S),
            "story",
        )
    return Q(
        r.choice(["Tell me a very short story about a {a}.", "Write a tiny story about a {a}."]).format(a=a),
        " ".join([S[0], S[1], S[10].replace(f" and {f}", " and the moon"), S[11]]),
        "story",
    )


QA = [
    (7, q_chat),
    (3, q_unknown),
    (17, q_arith),
    (5, q_word),
    (5, q_unit),
    (10, q_fact),
    (4, q_calendar),
    (6, q_letters),
    (4, q_count),
    (5, q_numbers),
    (4, q_list),
    (8, q_echo),
    (4, q_code),
    (4, q_json),
    (5, q_read),
    (4, q_story),
]
QF, QW = [f for _, f in QA], [w for w, _ in QA]


def noise(r, u, raw):
    if r.random() < 0.15:
        u = (
            r.choice(
                [
                    "Hi! ",
                    "Hello. ",
                    "Hey, ",
                    "Please: ",
                    "Quick question: ",
                    "Next question. ",
                    "Now, ",
                    "Okay. ",
                    "Tell me: ",
                    "One more thing. ",
                ]
            )
            + u
        )
    if raw:
        return u
    if r.random() < 0.10:
        u += r.choice([" Thanks!", " Please.", " Thank you.", " Please answer."])
    x = r.random()
    if x < 0.10:
        u = u.lower()
    elif x < 0.16 and u[-1] in ".?!":
        u = u[:-1]
    elif x < 0.18:
        u = u + "?"
    return u


def qa(r, ev, fn=None):
    d = (fn or r.choices(QF, QW)[0])(r, ev)
    d["u"] = noise(r, d["u"], d["raw"])
    return d


U = lambda s: {"role": "user", "content": s}
A = lambda s: {"role": "assistant", "content": s}
S_ = lambda s: {"role": "system", "content": s}
PLAIN_SYS = [
    "You are a helpful assistant.",
    "You are a helpful and friendly assistant.",
    "You are Carousel's tiny demo model.",
    "Be helpful and brief.",
    "Answer the questions of the user.",
    "You are an assistant. Answer clearly.",
]


def maybe_sys(r, p=0.2):
    return [S_(r.choice(PLAIN_SYS))] if r.random() < p else []


def d_single(r, ev, fn=None):
    d = qa(r, ev, fn)
    return dict(messages=maybe_sys(r) + [U(d["u"]), A(d["a"])], tools=None, skill=d["k"], short=d["s"])


def d_multi(r, ev):
    m = maybe_sys(r)
    for _ in range(r.randint(2, 7)):
        d = qa(r, ev)
        m += [U(d["u"]), A(d["a"])]
    return dict(messages=m, tools=None, skill="multi_turn:" + d["k"], short=d["s"])


def d_drill(r, ev):
    """Many short exercises in one chat (cheap in tokens, many examples)."""
    m = maybe_sys(r, 0.1)
    f = r.choice([q_arith, q_arith, q_arith, None])
    for _ in range(r.randint(4, 12)):
        d = qa(r, ev, f or r.choice([q_word, q_unit, q_numbers, q_letters, q_letters, q_calendar, q_fact]))
        m += [U(d["u"]), A(d["a"])]
    return dict(messages=m, tools=None, skill="drill:" + d["k"], short=d["s"])


# ------------------------------------------------------------------------------------------------ memory
MEM = {
    "name": (
        lambda r, ev: name(r, ev),
        ["My name is {v}.", "I am {v}.", "I'm {v}.", "You can call me {v}.", "Hello, my name is {v}.", "Hi, I am {v}."],
        "Nice to meet you, {v}!",
        ["What is my name?", "Who am I?", "Do you remember my name?", "Tell me my name.", "What am I called?"],
        "Your name is {v}.",
    ),
    "colour": (
        lambda r, ev: r.choice(COLOURS),
        [
            "My favourite colour is {v}.",
            "I like the colour {v} most.",
            "The colour I love is {v}.",
            "My favorite color is {v}.",
        ],
        "Got it, your favourite colour is {v}.",
        [
            "What is my favourite colour?",
            "Which colour do I like?",
            "Do you remember my favorite color?",
            "Tell me my favourite colour.",
        ],
        "Your favourite colour is {v}.",
    ),
    "city": (
        lambda r, ev: r.choice(CITIES) if r.random() < 0.7 else made_word(r, ev, 2, 4).capitalize(),
        ["I live in {v}.", "My home town is {v}.", "I am from {v}.", "I come from {v}."],
        "Good to know that you live in {v}.",
        ["Where do I live?", "Which city am I from?", "What is my home town?", "Where am I from?"],
        "You live in {v}.",
    ),
    "number": (
        lambda r, ev: str(r.randint(0, 9999)),
        [
            "My lucky number is {v}.",
            "Remember the number {v}.",
            "Please remember this number: {v}.",
            "My favourite number is {v}.",
        ],
        "I will remember the number {v}.",
        ["What is my number?", "Which number did I tell you?", "What was the number?", "Tell me my number."],
        "Your number is {v}.",
    ),
    "pet": (
        lambda r, ev: r.choice(ANIMALS),
        ["I have a {v}.", "My pet is a {v}.", "I own a {v} as a pet.", "At home I have a pet {v}."],
        "A {v} is a nice pet.",
        ["Which pet do I have?", "What is my pet?", "What animal do I have?"],
        "You have a {v}.",
    ),
    "petname": (
        lambda r, ev: name(r, ev),
        ["My pet is called {v}.", "The name of my pet is {v}.", "My pet's name is {v}."],
        "{v} is a lovely name for a pet.",
        ["What is the name of my pet?", "What is my pet called?", "How is my pet called?"],
        "Your pet is called {v}.",
    ),
    "food": (
        lambda r, ev: r.choice(FOODS),
        ["My favourite food is {v}.", "I love to eat {v}.", "I like {v} most of all food."],
        "Okay, you like {v}.",
        ["What is my favourite food?", "What do I like to eat?", "Which food do I love?"],
        "Your favourite food is {v}.",
    ),
    "job": (
        lambda r, ev: r.choice(JOBS),
        ["I work as a {v}.", "My job is {v}.", "I am a {v} by profession."],
        "It must be interesting to be a {v}.",
        ["What is my job?", "What do I do for a living?", "What is my profession?"],
        "You work as a {v}.",
    ),
    "age": (
        lambda r, ev: str(r.randint(5, 99)),
        ["I am {v} years old.", "My age is {v}.", "I just turned {v}."],
        "Okay, you are {v} years old.",
        ["How old am I?", "What is my age?", "Do you know my age?"],
        "You are {v} years old.",
    ),
    "code": (
        lambda r, ev: made_word(r, ev, 2, 4) if r.random() < 0.6 else randstr(r),
        ["The code word is {v}.", "Remember the code word {v}.", "The secret word is {v}.", "The password is {v}."],
        "I will remember the code word {v}.",
        [
            "What is the code word?",
            "What was the secret word?",
            "Tell me the password.",
            "Which code word did I give you?",
        ],
        "The code word is {v}.",
    ),
    "friend": (
        lambda r, ev: name(r, ev),
        ["My best friend is {v}.", "My best friend is called {v}.", "{v} is my best friend."],
        "It is good to have a friend like {v}.",
        ["Who is my best friend?", "What is the name of my best friend?", "What is my friend called?"],
        "Your best friend is {v}.",
    ),
    "hobby": (
        lambda r, ev: r.choice(HOBBIES),
        ["My hobby is {v}.", "I enjoy {v}.", "In my free time I like {v}."],
        "{V} sounds like fun.",
        ["What is my hobby?", "What do I enjoy?", "What do I do in my free time?"],
        "Your hobby is {v}.",
    ),
    "month": (
        lambda r, ev: r.choice(MONTHS),
        ["My birthday is in {v}.", "I was born in {v}.", "I have my birthday in {v}."],
        "I will remember that your birthday is in {v}.",
        ["When is my birthday?", "In which month was I born?", "Which month is my birthday?"],
        "Your birthday is in {v}.",
    ),
}
NOTTOLD = "You have not told me that yet."


def d_memory(r, ev):
    m = maybe_sys(r)
    keys = r.sample(list(MEM), r.randint(1, 4))
    vals = {}
    ops = []
    for k in keys:
        ops.append(("tell", k))
    for _ in range(r.randint(0, 4)):
        ops.append(("noise", None))
    r.shuffle(ops)
    if r.random() < 0.2:
        ops.append(("tell", r.choice(keys)))
    combined = r.random() < 0.25
    for op, k in ops:
        if op == "noise":
            d = qa(r, ev, r.choice([q_arith, q_fact, q_chat, q_unit, q_calendar, q_letters, q_numbers, q_echo]))
            m += [U(d["u"]), A(d["a"])]
        else:
            gen, tell, ack, _, _ = MEM[k]
            v = gen(r, ev)
            s = r.choice(tell).format(v=v)
            if k in vals:
                s = r.choice(["Actually, ", "Sorry, ", "Correction: "]) + s
            vals[k] = v
            extra = ""
            if combined and r.random() < 0.5:
                k2 = r.choice(list(MEM))
                if k2 not in vals and k2 not in keys:
                    vals[k2] = MEM[k2][0](r, ev)
                    extra = " " + r.choice(MEM[k2][1]).format(v=vals[k2])
                    a = "Okay, I will remember that."
            m += [U(s + extra), A("Okay, I will remember that." if extra else ack.format(v=v, V=v.capitalize()))]
    for _ in range(r.randint(1, 3)):
        if r.random() < 0.12 and not ev:
            k = r.choice(list(MEM))
            a = MEM[k][4].format(v=vals[k]) if k in vals else NOTTOLD
        else:
            k = r.choice(list(vals))
            a = MEM[k][4].format(v=vals[k])
        m += [U(noise(r, r.choice(MEM[k][3]), False)), A(a)]
    return dict(messages=m, tools=None, skill="memory", short=vals.get(k))


# ------------------------------------------------------------------------------------------------ system prompts
def d_system(r, ev):
    k = r.randrange(9)
    n = name(r, ev)
    w = r.choice(["Ahoy", "Well", "Okay", "Sure", "Indeed", "Listen", "Aha"])
    f = lambda a, s: a
    if k == 0:
        sysm, f = (
            r.choice(
                [
                    "Answer in upper case.",
                    "Write everything in capital letters.",
                    "Always answer in upper case letters.",
                ]
            ),
            lambda a, s: a.upper(),
        )
    elif k == 1:
        sysm, f = (
            r.choice(
                [
                    "Answer in one word.",
                    "Give only the short answer.",
                    "Reply with the answer only, without a sentence.",
                ]
            ),
            lambda a, s: s,
        )
    elif k == 2:
        sysm, f = (
            r.choice(
                [
                    f"Sign every answer with {n}.",
                    f"Sign each answer with the name {n}.",
                    f"End every answer with your name, {n}.",
                ]
            ),
            lambda a, s: a + f"\n— {n}",
        )
    elif k == 3:
        sysm, f = (
            r.choice([f"Begin every answer with {w}.", f"Start each answer with the word {w}."]),
            lambda a, s: f"{w}! {a}",
        )
    elif k == 4:
        sysm, f = (
            r.choice(
                ["Answer in lower case.", "Write everything in small letters.", "Always answer in lower case letters."]
            ),
            lambda a, s: a.lower(),
        )
    elif k == 5:
        sysm, f = (
            r.choice([f"The user is called {n}. Use this name in every answer.", f"Address the user as {n}."]),
            lambda a, s: f"{n}, here is the answer: {a}",
        )
    elif k == 6:
        sysm, f = (
            r.choice(["Put every answer in quotes.", "Write your answers in quotation marks."]),
            lambda a, s: f"“{a}”",
        )
    elif k == 7:
        t = made_word(r, ev, 2, 3)
        sysm, f = (
            r.choice([f"Answer inside <{t}> tags.", f"Wrap every answer in <{t}> tags."]),
            lambda a, s: f"<{t}>{a}</{t}>",
        )
    else:
        j = r.choice(JOBS)
        sysm = r.choice([f"You are {n}, a friendly {j}.", f"Your name is {n}. You work as a {j}."])
        m = [S_(sysm)]
        for _ in range(r.randint(1, 3)):
            x = r.randrange(4)
            if x == 0:
                m += [
                    U(
                        r.choice(
                            ["Who are you?", "What is your name?", "Introduce yourself.", "What should I call you?"]
                        )
                    ),
                    A(
                        f"I am {n}, a friendly {j}."
                        if sysm.startswith("You") and "friendly" in sysm
                        else f"I am {n}. I work as a {j}."
                    ),
                ]
            elif x == 1:
                m += [
                    U(r.choice(["What is your job?", "What do you do?", "What is your profession?"])),
                    A(f"I work as a {j}."),
                ]
            else:
                d = qa(r, ev, r.choice([q_arith, q_fact, q_calendar]))
                m += [U(d["u"]), A(d["a"])]
        if r.random() < 0.5 or ev:
            m += [
                U(r.choice(["Who are you?", "What is your name?"])),
                A(f"I am {n}, a friendly {j}." if "friendly" in sysm else f"I am {n}. I work as a {j}."),
            ]
        return dict(messages=m, tools=None, skill="system_prompt", short=None)
    if r.random() < 0.4:
        sysm = (
            (r.choice(PLAIN_SYS) + " " + sysm)
            if r.random() < 0.5
            else (sysm + " " + r.choice(["Be polite.", "Be brief.", "Be friendly."]))
        )
    m = [S_(sysm)]
    for _ in range(r.randint(1, 4)):
        while True:
            d = qa(r, ev, r.choice([q_arith, q_fact, q_calendar, q_unit, q_numbers, q_chat, q_list]))
            if k != 1 or d["s"]:
                break
        m += [U(d["u"]), A(f(d["a"], d["s"]))]
    return dict(messages=m, tools=None, skill="system_prompt", short=None)


def d_rules(r, ev):
    """Facts given in the system prompt, asked about later."""
    ks = r.sample(
        [
            "opening hour",
            "closing hour",
            "phone number",
            "owner",
            "city",
            "price of the ticket",
            "name of the shop",
            "day off",
            "discount code",
            "room number",
        ],
        r.randint(2, 5),
    )
    v = {}
    for k in ks:
        v[k] = {
            "opening hour": f"{r.randint(6, 11)}:00",
            "closing hour": f"{r.randint(15, 23)}:00",
            "phone number": str(r.randint(100000, 999999)),
            "owner": name(r, ev),
            "city": r.choice(CITIES),
            "price of the ticket": f"{r.randint(1, 90)} coins",
            "name of the shop": r.choice(ADJ).capitalize() + " " + r.choice(NOUNS).capitalize(),
            "day off": r.choice(DAYS),
            "discount code": made_word(r, ev).upper(),
            "room number": str(r.randint(1, 900)),
        }[k]
    m = [
        S_(
            r.choice(
                [
                    "Use these facts to answer.\n",
                    "You work for a small shop. Facts:\n",
                    "Information for your answers:\n",
                ]
            )
            + "\n".join(f"- {k}: {x}" for k, x in v.items())
        )
    ]
    for _ in range(r.randint(1, 3)):
        k = r.choice(ks)
        m += [
            U(
                r.choice(
                    ["What is the {k}?", "Tell me the {k}.", "Can you tell me the {k}?", "I need the {k}."]
                ).format(k=k)
            ),
            A(f"The {k} is {v[k]}."),
        ]
    return dict(messages=m, tools=None, skill="system_facts", short=v[k])


# ------------------------------------------------------------------------------------------------ long contexts
def d_long(r, ev, n=None):
    """Needle questions over long lists, long copies, facts remembered over much text."""
    k = r.randrange(4)
    if k == 0:
        d = q_lookup(r, ev, n or r.randint(30, 110))
        m = [U(d["u"]), A(d["a"])]
        s = "long_lookup"
    elif k == 1:
        d = q_lookup(r, ev, n or r.randint(20, 80))
        m = [U(d["u"]), A(d["a"])]
        lines = [l for l in d["u"].split("\n") if any(x in l for x in (": ", " = ", " -> ")) and "?" not in l]
        for _ in range(r.randint(1, 3)):
            l = r.choice(lines)
            sep = next(x for x in (" -> ", " = ", ": ") if x in l)
            a, b = l.split(sep, 1)
            m += [U(f"And what is the value of {a}?"), A(f"The value of {a} is {b}.")]
        s = "long_lookup"
    elif k == 2:
        f = r.choice(["code", "number", "name", "city"])
        gen, tell, ack, ask, ans = MEM[f]
        v = gen(r, ev)
        m = [U(r.choice(tell).format(v=v)), A(ack.format(v=v))]
        for _ in range(r.randint(1, 3)):
            d = q_echo(r, ev, True)
            m += [U(d["u"]), A(d["a"])]
        m += [U(r.choice(ask)), A(ans.format(v=v))]
        s = "long_memory"
    else:
        L = [sentence(r) for _ in range(r.randint(10, 40))]
        i = r.randrange(min(20, len(L)))
        o = "first second third fourth fifth sixth seventh eighth ninth tenth".split()
        if r.random() < 0.5 and i < 10:
            q = f"What is the {o[i]} line?"
        else:
            q = f"What is line {i + 1}?"
        m = [U("\n".join(f"{j}. {x}" for j, x in enumerate(L, 1)) + "\n\n" + q), A(L[i])]
        s = "long_lookup"
    return dict(messages=maybe_sys(r) + m, tools=None, skill=s, short=None)


def make_doc(r, ev=False, mix=None):
    from generate_tools import d_tool_call, d_tool_chat, d_tool_none, d_tool_result

    f = r.choices(
        [
            d_single,
            d_multi,
            d_memory,
            d_system,
            d_rules,
            d_long,
            d_tool_call,
            d_tool_result,
            d_tool_none,
            d_tool_chat,
            lambda r, ev: d_single(r, ev, lambda r, ev: q_echo(r, ev, True)),
            d_drill,
        ],
        mix or [26, 8, 12, 7, 3, 6, 14, 4, 5, 6, 3, 12],
    )[0]
    return f(r, ev)


def eval_set(n, seed=777, ev=True):
    """n prompts a skill, whose last message is the expected answer; ev=False: new random documents from the training distribution."""
    from generate_tools import d_tool_call, d_tool_chat, d_tool_none, d_tool_result

    one = lambda q: lambda r, ev: d_single(r, ev, q)
    E = {
        "smalltalk": one(q_chat),
        "unknown": one(q_unknown),
        "arithmetic_1_2_digits": one(lambda r, ev: q_arith(r, ev, r.choice("+-"), r.choice([1, 2]))),
        "arithmetic_3_digits": one(lambda r, ev: q_arith(r, ev, r.choice("+-"), 3)),
        "multiply_divide": one(lambda r, ev: q_arith(r, ev, r.choice("*/"))),
        "word_problem": one(q_word),
        "units": one(q_unit),
        "facts": one(q_fact),
        "calendar": one(q_calendar),
        "letters": one(q_letters),
        "counting": one(q_count),
        "numbers": one(q_numbers),
        "listing": one(q_list),
        "echo": one(q_echo),
        "copy_long": one(lambda r, ev: q_echo(r, ev, True)),
        "code": one(q_code),
        "json": one(q_json),
        "reading": one(q_read),
        "lookup_short": one(lambda r, ev: q_lookup(r, ev, r.randint(4, 20))),
        "story": one(q_story),
        "memory": d_memory,
        "multi_turn": d_multi,
        "system_prompt": d_system,
        "system_facts": d_rules,
        "long_context": d_long,
        "tool_call": lambda r, ev: d_tool_call(r, ev, False),
        "tool_call_parallel": lambda r, ev: d_tool_call(r, ev, True),
        "tool_result": d_tool_result,
        "tool_none": d_tool_none,
        "tool_multi_turn": d_tool_chat,
    }
    out = []
    for k, f in E.items():
        i = 0
        got = 0
        while got < n:
            d = f(random.Random(f"eval-{seed}-{k}-{i}"), ev)
            i += 1
            if k == "tool_call_parallel" and len(d["messages"][-1].get("tool_calls", [])) < 2:
                continue
            out.append(d | {"skill": k})
            got += 1
    return out


if __name__ == "__main__":
    import sys

    sys.modules["generate_data"] = sys.modules["__main__"]
    ap = argparse.ArgumentParser()
    ap.add_argument("--docs", type=int, default=0)
    ap.add_argument("--eval", type=int, default=0)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--out")
    ap.add_argument("--selftest", action="store_true")
    a = ap.parse_args()
    if a.selftest:
        import collections
        import os
        import time

        from jinja2.sandbox import ImmutableSandboxedEnvironment

        env = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        env.filters["tojson"] = lambda x, **k: json.dumps(x, ensure_ascii=False)

        def fail(m):
            raise ValueError(m)

        env.globals["raise_exception"] = fail
        t = env.from_string(TEMPLATE.read_text())
        c = collections.Counter()
        L = collections.Counter()
        t0 = time.time()
        N = 3000
        docs = [make_doc(random.Random(f"1-{i}"), i % 7 == 0) for i in range(N)]
        dt = time.time() - t0
        for d in docs:
            x, y = (
                render(d["messages"], d["tools"]),
                t.render(messages=d["messages"], tools=d["tools"], add_generation_prompt=False),
            )
            assert x == y, (x, y)
            x, y = (
                render(d["messages"][:-1], d["tools"], True),
                t.render(messages=d["messages"][:-1], tools=d["tools"], add_generation_prompt=True),
            )
            assert x == y, (x, y)
            c[d["skill"].split(":")[0]] += 1
            L[d["skill"].split(":")[0]] += len(x)
        for bad in (
            [{"role": "system", "content": "x"}],
            [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}],
            [{"role": "user", "content": "x"}, {"role": "tool", "content": "y"}],
            [],
        ):
            try:
                t.render(messages=bad)
                raise SystemExit("no error for " + repr(bad))
            except ValueError:
                pass
        eval_set(2)
        print(f"ok: {N} documents, {N / dt:.0f}/s;", {k: (v, L[k] // v) for k, v in c.most_common()})
    else:
        D = eval_set(a.eval) if a.eval else [make_doc(random.Random(f"{a.seed}-{i}")) for i in range(a.docs)]
        with open(a.out, "w") as f:
            for d in D:
                f.write(dumps(d) + "\n")
        print(len(D), "documents ->", a.out)
