"""Facts: capitals, opposites, colours, sounds, young animals, symbols, translations."""

from chats.question import Q

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
