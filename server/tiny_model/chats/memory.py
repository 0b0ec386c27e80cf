"""Chats that tell something and ask for it later."""

from chats.arithmetic import q_arith, q_unit
from chats.copying import q_echo
from chats.counting import q_numbers
from chats.days import q_calendar
from chats.draws import made_word, name, randstr
from chats.exercises import noise, qa
from chats.facts import q_fact
from chats.letters import q_letters
from chats.message import A, U, maybe_sys
from chats.smalltalk import q_chat
from chats.words import ANIMALS, CITIES, COLOURS, FOODS, HOBBIES, JOBS, MONTHS

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
