"""Tool-calling chats with diverse schemas (imported by generate_data.py)."""

from generate_data import (
    ADJ,
    CAPITALS,
    CITIES,
    FOODS,
    HOBBIES,
    NAMES,
    NOUNS,
    WORDS,
    A,
    U,
    W,
    code,
    dumps,
    held,
    made_word,
    maybe_sys,
    name,
    phrase,
    q_arith,
    q_calendar,
    q_chat,
    q_fact,
    q_letters,
    q_list,
    q_unit,
    qa,
    randstr,
    sentence,
)

NO_TOOL = "I do not have a tool for that."
date = lambda r: f"20{r.randint(20, 35)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"
clock = lambda r: f"{r.randint(0, 23):02d}:{r.choice([0, 15, 30, 45, 10, 5]):02d}"
email = lambda r, ev: (
    name(r, ev).lower().replace("é", "e").replace("ë", "e").replace("ö", "o")
    + "@"
    + r.choice(["example.com", "mail.org", r.choice(WORDS) + ".net", "test.io"])
)
fname = lambda r: (
    r.choice(WORDS)
    + r.choice(["", "_" + r.choice(WORDS), str(r.randint(1, 99))])
    + r.choice([".txt", ".py", ".md", ".json", ".csv", ".log", ".html"])
)
path = lambda r: (
    r.choice(
        ["", "", "/tmp/", "/home/" + r.choice(NAMES).lower() + "/", "src/", "docs/", "data/" + r.choice(WORDS) + "/"]
    )
    + fname(r)
)
url = lambda r: (
    "https://"
    + r.choice(["www.", ""])
    + r.choice(WORDS)
    + r.choice([".com", ".org", ".net"])
    + r.choice(["", "/" + r.choice(WORDS), "/" + r.choice(WORDS) + "/" + str(r.randint(1, 99))])
)
CUR = W("USD EUR GBP JPY CHF SEK NOK INR BRL CAD")

# family: name aliases, descriptions, params {slot: (aliases, type, descriptions, required)}, value makers, user templates, result, answer
# A template that leaves out a slot leaves that (optional) parameter out of the call.
FAM = {
    "weather": (
        W("get_weather weather_lookup fetch_weather current_weather getWeather weather"),
        ["Get the current weather for a city.", "Look up the weather of a place.", "Weather report for a city."],
        {
            "city": (W("city location place town"), "string", ["Name of the city", "The city", "City to look up"], 1),
            "unit": (W("unit units scale"), "string", ["celsius or fahrenheit", "Temperature unit"], 0),
        },
        lambda r, ev: dict(
            city=r.choice(CITIES + list(CAPITALS.values())[:40])
            if r.random() < 0.8
            else made_word(r, ev, 2, 4).capitalize(),
            unit=r.choice(["celsius", "fahrenheit"]),
        ),
        [
            "What is the weather in {city}?",
            "How is the weather in {city} today?",
            "Tell me the weather for {city}.",
            "Is it warm in {city}?",
            "Weather in {city}?",
            "Check the weather in {city}, please.",
            "What is the weather in {city} in {unit}?",
            "Give me the weather of {city} in {unit}.",
            "Do I need a coat in {city}?",
        ],
        lambda r, v: dict(
            city=v["city"],
            temperature=r.randint(-10, 38),
            condition=r.choice(W("sunny cloudy rainy windy foggy snowy")),
        ),
        lambda v, o: f"The weather in {v['city']} is {o['condition']} with {o['temperature']} degrees.",
    ),
    "calc": (
        W("calculate calculator compute evaluate math eval_expression"),
        [
            "Evaluate a math expression.",
            "Calculator for arithmetic expressions.",
            "Compute the value of an expression.",
        ],
        {"expr": (W("expression expr formula input"), "string", ["The math expression", "Expression to evaluate"], 1)},
        lambda r, ev: dict(
            expr=f"{r.randint(1, 9999)} {r.choice('+-*/')} {r.randint(1, 999)}"
            + (f" {r.choice('+-*')} {r.randint(1, 99)}" if r.random() < 0.3 else "")
        ),
        [
            "What is {expr}?",
            "Calculate {expr}.",
            "Compute {expr}",
            "Please work out {expr}.",
            "How much is {expr}?",
            "Use the calculator for {expr}.",
        ],
        lambda r, v: dict(result=r.randint(-999, 99999)),
        lambda v, o: f"The result is {o['result']}.",
    ),
    "email": (
        W("send_email send_mail email_send sendEmail mail"),
        ["Send an email.", "Send an email message to a person."],
        {
            "to": (
                W("to recipient address receiver"),
                "string",
                ["Email address of the recipient", "Who gets the email"],
                1,
            ),
            "subject": (W("subject title topic"), "string", ["Subject line", "Subject of the email"], 1),
            "body": (W("body text message content"), "string", ["Text of the email", "Body of the email"], 0),
        },
        lambda r, ev: dict(to=email(r, ev), subject=phrase(r, 1, 4).capitalize(), body=sentence(r)),
        [
            "Send an email to {to} with the subject {subject}.",
            'Email {to} about "{subject}" and write: {body}',
            'Write to {to}, subject "{subject}", text: {body}',
            "Please mail {to}. Subject: {subject}. Body: {body}",
        ],
        lambda r, v: dict(status="sent", id=r.randint(100, 9999)),
        lambda v, o: f"The email to {v['to']} was sent.",
    ),
    "event": (
        W("create_event add_event calendar_add new_event createEvent schedule_meeting"),
        ["Add an event to the calendar.", "Create a calendar event."],
        {
            "title": (W("title name summary event"), "string", ["Title of the event", "What the event is"], 1),
            "date": (W("date day on start_date"), "string", ["Date as YYYY-MM-DD", "Day of the event"], 1),
            "time": (W("time start start_time hour"), "string", ["Time as HH:MM", "Start time"], 0),
        },
        lambda r, ev: dict(
            title=r.choice(
                [
                    "Meeting with " + name(r, ev),
                    "Lunch with " + name(r, ev),
                    r.choice(HOBBIES).capitalize(),
                    "Dentist",
                    phrase(r, 1, 3).capitalize(),
                ]
            ),
            date=date(r),
            time=clock(r),
        ),
        [
            'Add "{title}" to my calendar on {date} at {time}.',
            "Create an event called {title} on {date}.",
            "Schedule {title} for {date} at {time}.",
            "Put {title} in the calendar on {date}.",
            'Please plan "{title}" on {date}, starting at {time}.',
        ],
        lambda r, v: dict(status="created", id=r.randint(100, 9999)),
        lambda v, o: f'The event "{v["title"]}" was created on {v["date"]}.',
    ),
    "timer": (
        W("set_timer start_timer timer create_timer setTimer"),
        ["Set a timer.", "Start a countdown timer."],
        {
            "n": (
                W("minutes duration_minutes mins length"),
                "integer",
                ["Number of minutes", "Minutes until the timer rings"],
                1,
            ),
            "label": (W("label name title"), "string", ["Name of the timer", "Label of the timer"], 0),
        },
        lambda r, ev: dict(n=r.randint(1, 180), label=r.choice(FOODS + WORDS)),
        [
            "Set a timer for {n} minutes.",
            "Start a {n} minute timer called {label}.",
            "Wake me in {n} minutes.",
            "Set a timer named {label} for {n} minutes.",
            "Timer for {n} minutes, please.",
        ],
        lambda r, v: dict(status="ok"),
        lambda v, o: f"The timer is set for {v['n']} minutes.",
    ),
    "search": (
        W("web_search search search_web google find_pages internet_search"),
        ["Search the web.", "Find web pages for a query."],
        {
            "q": (W("query q search_term keywords text"), "string", ["What to search for", "The search query"], 1),
            "k": (
                W("limit max_results count top_k num"),
                "integer",
                ["Maximum number of results", "How many results to return"],
                0,
            ),
        },
        lambda r, ev: dict(q=phrase(r, 1, 4), k=r.randint(1, 20)),
        [
            "Search the web for {q}.",
            "Find {k} pages about {q}.",
            "Look up {q} on the internet.",
            'Search for "{q}" and return {k} results.',
            "Google {q}.",
        ],
        lambda r, v: dict(results=[dict(title=sentence(r)[:-1], url=url(r)) for _ in range(r.randint(1, 2))]),
        lambda v, o: f"I found this: {o['results'][0]['title']} ({o['results'][0]['url']})",
    ),
    "read": (
        W("read_file open_file cat_file readFile load_file view"),
        ["Read a file.", "Return the content of a file."],
        {"path": (W("path file filename file_path"), "string", ["Path of the file", "File to read"], 1)},
        lambda r, ev: dict(path=path(r)),
        [
            "Read the file {path}.",
            "Show me {path}.",
            "What is in {path}?",
            "Open {path}, please.",
            "Print the content of {path}.",
        ],
        lambda r, v: code(r) if r.random() < 0.5 else sentence(r),
        lambda v, o: f"The file {v['path']} contains:\n{o}",
    ),
    "write": (
        W("write_file save_file create_file writeFile write put_file"),
        ["Write text to a file.", "Create a file with the given content."],
        {
            "path": (W("path file filename file_path"), "string", ["Path of the file", "File to write"], 1),
            "content": (W("content text data body"), "string", ["Text to write", "Content of the file"], 1),
        },
        lambda r, ev: dict(
            path=path(r),
            content=code(r) if r.random() < 0.7 else "\n".join(sentence(r) for _ in range(r.randint(1, 3))),
        ),
        [
            "Write this to {path}:\n```\n{content}\n```",
            "Save the following text as {path}:\n{content}",
            "Create the file {path} with this content:\n```\n{content}\n```",
            "Put this into {path}:\n\n{content}",
        ],
        lambda r, v: dict(ok=True, bytes=len(v["content"])),
        lambda v, o: f"The file {v['path']} was written.",
    ),
    "run": (
        W("run_python execute_code python run_code exec"),
        ["Run Python code.", "Execute a piece of code and return its output."],
        {"code": (W("code source script program"), "string", ["The code to run", "Source code"], 1)},
        lambda r, ev: dict(code=code(r)),
        [
            "Run this code:\n```\n{code}\n```",
            "Execute this:\n```python\n{code}\n```",
            "Please run the following program:\n\n{code}",
            "What does this code print?\n```\n{code}\n```",
        ],
        lambda r, v: dict(output=str(r.randint(0, 999)), exit_code=0),
        lambda v, o: f"The output is {o['output']}.",
    ),
    "shell": (
        W("bash run_command shell execute_command terminal"),
        ["Run a shell command.", "Execute a command in the terminal."],
        {
            "cmd": (W("command cmd line input"), "string", ["The command", "Command to run"], 1),
            "t": (W("timeout timeout_seconds max_seconds"), "integer", ["Timeout in seconds", "Seconds to wait"], 0),
        },
        lambda r, ev: dict(
            cmd=r.choice(
                [
                    f"ls -la {r.choice(WORDS)}/",
                    f"cat {fname(r)}",
                    f'grep -r "{r.choice(WORDS)}" src/',
                    f"mkdir -p {r.choice(WORDS)}/{r.choice(WORDS)}",
                    f'git commit -m "{phrase(r, 1, 3)}"',
                    f"rm {fname(r)}",
                    f"python {r.choice(WORDS)}.py --{r.choice(WORDS)} {r.randint(1, 99)}",
                    "git status",
                    "df -h",
                    f"wc -l {fname(r)}",
                ]
            ),
            t=r.randint(1, 300),
        ),
        [
            "Run {cmd}",
            "Execute `{cmd}` in the shell.",
            "Run the command `{cmd}` with a timeout of {t} seconds.",
            "In the terminal, run: {cmd}",
            "Please execute: {cmd}",
        ],
        lambda r, v: dict(stdout=phrase(r, 1, 4), exit_code=r.choice([0, 0, 0, 1])),
        lambda v, o: (
            f"The command printed: {o['stdout']}"
            if o["exit_code"] == 0
            else f"The command failed with exit code {o['exit_code']}."
        ),
    ),
    "money": (
        W("convert_currency currency_convert exchange fx_convert convertMoney"),
        ["Convert money between currencies.", "Convert an amount to another currency."],
        {
            "amount": (W("amount value sum money"), "number", ["Amount of money", "How much to convert"], 1),
            "a": (
                W("from from_currency source base"),
                "string",
                ["Currency code to convert from", "Source currency"],
                1,
            ),
            "b": (W("to to_currency target quote"), "string", ["Currency code to convert to", "Target currency"], 1),
        },
        lambda r, ev: dict(
            zip("amount a b".split(), [r.choice([r.randint(1, 5000), r.randint(1, 9999) / 100])] + r.sample(CUR, 2))
        ),
        [
            "Convert {amount} {a} to {b}.",
            "How much is {amount} {a} in {b}?",
            "Change {amount} {a} into {b}, please.",
            "What are {amount} {a} in {b}?",
        ],
        lambda r, v: dict(result=r.randint(1, 99999) / 100),
        lambda v, o: f"{v['amount']} {v['a']} are {o['result']} {v['b']}.",
    ),
    "translate": (
        W("translate translate_text translator translation"),
        ["Translate text.", "Translate a text into another language."],
        {
            "text": (W("text input source_text phrase"), "string", ["Text to translate", "The text"], 1),
            "lang": (
                W("target_language language lang to"),
                "string",
                ["Language to translate to", "Target language"],
                1,
            ),
        },
        lambda r, ev: dict(
            text=sentence(r)[:-1], lang=r.choice(W("French German Spanish Italian Japanese Chinese Polish Dutch"))
        ),
        ['Translate "{text}" to {lang}.', 'How do you say "{text}" in {lang}?', "Translate this into {lang}: {text}"],
        lambda r, v: randstr(r),
        lambda v, o: f"In {v['lang']}: {o}",
    ),
    "light": (
        W("set_light control_light light_switch switch_lamp setLight"),
        ["Switch a light on or off.", "Control the light of a room."],
        {
            "room": (W("room location area zone"), "string", ["Room of the light", "Which room"], 1),
            "on": (W("on enabled state power"), "boolean", ["True to switch on", "Whether the light is on"], 1),
            "level": (
                W("brightness level percent"),
                "integer",
                ["Brightness in percent", "Brightness from 0 to 100"],
                0,
            ),
        },
        lambda r, ev: dict(
            room=r.choice(W("kitchen bedroom bathroom hall office cellar attic garage")),
            on=r.random() < 0.5,
            level=r.randint(1, 100),
        ),
        [
            "Switch {onoff} the light in the {room}.",
            "Turn {onoff} the {room} light.",
            "Turn the {room} lamp {onoff}.",
            "Please switch the light in the {room} {onoff}.",
            "ON:Turn on the {room} light at {level} percent.",
            "ON:Switch on the light in the {room} with brightness {level}.",
        ],
        lambda r, v: dict(ok=True),
        lambda v, o: f"The light in the {v['room']} is now {'on' if v['on'] else 'off'}.",
    ),
    "todo": (
        W("add_todo add_task todo_add create_task newTask"),
        ["Add tasks to the list.", "Add items to the to-do list."],
        {"items": (W("items tasks entries list"), "array", ["Items to add", "List of tasks"], 1)},
        lambda r, ev: dict(
            items=[
                r.choice(["buy ", "clean the ", "find the ", "fix the ", "call ", ""]) + r.choice(WORDS)
                for _ in range(r.randint(1, 4))
            ]
        ),
        [
            "Add these to my list: {items}",
            "Put {items} on the to-do list.",
            "New tasks: {items}",
            "Please add {items} to my tasks.",
        ],
        lambda r, v: dict(added=len(v["items"])),
        lambda v, o: f"I added {o['added']} items to the list.",
    ),
    "music": (
        W("play_music play_song music_player playMusic"),
        ["Play music.", "Play a song by an artist."],
        {
            "song": (W("song title track name"), "string", ["Title of the song", "Song to play"], 1),
            "artist": (W("artist singer band by"), "string", ["Name of the artist", "Who made the song"], 0),
            "rep": (W("repeat loop"), "boolean", ["Whether to repeat", "Play in a loop"], 0),
        },
        lambda r, ev: dict(song=phrase(r, 1, 3).title(), artist=name(r, ev), rep=True),
        [
            "Play {song}.",
            "Play the song {song} by {artist}.",
            "I want to hear {song} by {artist}.",
            "Put on {song}, please.",
            "REP:Play {song} in a loop.",
            "REP:Play {song} by {artist} on repeat.",
        ],
        lambda r, v: dict(status="playing"),
        lambda v, o: f"Now playing {v['song']}.",
    ),
    "order": (
        W("place_order order_product buy_item createOrder order"),
        ["Order a product.", "Place an order in the shop."],
        {
            "item": (W("item product article name"), "string", ["Name of the product", "What to order"], 1),
            "n": (W("quantity amount count number"), "integer", ["How many pieces", "Number of pieces"], 1),
            "fast": (
                W("express fast_delivery priority"),
                "boolean",
                ["Express delivery", "Whether to deliver fast"],
                0,
            ),
        },
        lambda r, ev: dict(item=r.choice(ADJ) + " " + r.choice(NOUNS), n=r.randint(2, 60), fast=True),
        [
            "Order {n} pieces of {item}.",
            "Buy {n} times {item}.",
            "I need {n} of the product {item}.",
            "FAST:Order {n} pieces of {item} with express delivery.",
            "Please order {item}, {n} pieces.",
        ],
        lambda r, v: dict(order_id=r.choice("ABCDEFG") + str(r.randint(100, 9999)), total=r.randint(5, 900)),
        lambda v, o: f"The order {o['order_id']} for {v['n']} pieces of {v['item']} costs {o['total']}.",
    ),
    "time": (
        W("get_time current_time clock time_in getTime"),
        ["Get the current time in a city.", "Tell the local time of a place."],
        {"city": (W("city timezone location place"), "string", ["Name of the city", "City to look up"], 1)},
        lambda r, ev: dict(city=r.choice(CITIES)),
        [
            "What time is it in {city}?",
            "Tell me the time in {city}.",
            "How late is it in {city}?",
            "Local time in {city}?",
        ],
        lambda r, v: dict(time=clock(r)),
        lambda v, o: f"It is {o['time']} in {v['city']}.",
    ),
    "user": (
        W("create_user add_user register_user new_account createUser"),
        ["Create a user account.", "Register a new user."],
        {
            "name": (W("name username user full_name"), "string", ["Name of the user", "User name"], 1),
            "age": (W("age years"), "integer", ["Age in years", "Age of the user"], 1),
            "admin": (W("admin is_admin superuser"), "boolean", ["Whether the user is an admin", "Admin rights"], 0),
        },
        lambda r, ev: dict(name=name(r, ev), age=r.randint(5, 99), admin=True),
        [
            "Create a user {name} with age {age}.",
            "Register {name}, who is {age} years old.",
            "ADMIN:Create an admin account for {name}, age {age}.",
            "Add the user {name}, aged {age}.",
        ],
        lambda r, v: dict(id=r.randint(1, 9999)),
        lambda v, o: f"The user {v['name']} was created with id {o['id']}.",
    ),
    "now": (
        W("ping get_status status health_check server_status uptime"),
        ["Return the status of the server.", "Check that the server is running."],
        {},
        lambda r, ev: {},
        ["Is the server running?", "Check the server.", "What is the status of the server?", "Ping the server."],
        lambda r, v: dict(status=r.choice(["ok", "up", "degraded", "down"]), uptime_hours=r.randint(1, 999)),
        lambda v, o: f"The server status is {o['status']} after {o['uptime_hours']} hours.",
    ),
}
CONFLICT = {"arithmetic": "calc", "arithmetic_3digit": "calc", "units": "calc", "facts": "translate"}
KW = W(
    "action alpha amount base beta block branch budget cache channel code color config count delta depth detail device domain driver entry factor feature field filter flag format group height host index interval kind label layer level limit line mode model module node note offset option owner page period phase pin port prefix priority profile range rank ratio region role round row rule scale scope score seed section serial shape shift signal site size slot source speed stage step stock style suffix table tag target task team theme threshold tier token topic track type unit user value variant version volume weight width window zone"
)
VB = W(
    "create delete update fetch list move copy check start stop send open close build merge split rotate scan print export import sync lock unlock approve reject archive publish restore measure assign book cancel rename resize"
)
OB = W(
    "record report ticket invoice image robot sensor engine folder backup server queue order sample camera door machine printer account device payment package route batch bucket cluster contract customer dataset document drone elevator fan garden heater job key lamp message model motor note oven parcel picture pipeline pump room satellite schedule session shelf ship signal storage table tank train tunnel vehicle wallet warehouse"
)


def style(r, words):
    k = r.randrange(6)
    if k < 3:
        return "_".join(words)
    if k == 3:
        return words[0] + "".join(w.capitalize() for w in words[1:])
    if k == 4:
        return "-".join(words)
    return ".".join(words)


def typed(r, ev, t):
    if t == "string":
        return r.choice(
            [
                lambda: r.choice(WORDS),
                lambda: phrase(r, 1, 3),
                lambda: r.choice(CITIES),
                lambda: name(r, ev),
                lambda: made_word(r, ev),
                lambda: randstr(r),
                lambda: date(r),
                lambda: path(r),
                lambda: r.choice("ABCDEFGH") + str(r.randint(1, 999)),
                lambda: url(r),
            ]
        )()
    if t == "integer":
        return r.choice([r.randint(0, 9), r.randint(10, 99), r.randint(100, 9999), -r.randint(1, 99)])
    if t == "number":
        return r.choice([r.randint(1, 999) / 10, r.randint(1, 999) / 100, r.randint(1, 50) + 0.5])
    if t == "boolean":
        return r.random() < 0.5
    if t == "array":
        return (
            [r.choice(WORDS) for _ in range(r.randint(1, 4))]
            if r.random() < 0.6
            else [r.randint(0, 99) for _ in range(r.randint(1, 4))]
        )
    return {r.choice(KW): r.choice([r.randint(0, 99), r.choice(WORDS), True, False]) for _ in range(r.randint(1, 3))}


def show(v):
    return v if isinstance(v, str) else dumps(v)


def wrap(r, nm, desc, props, req):
    p = {"type": "object", "properties": props}
    if req or r.random() < 0.5:
        p["required"] = req
    if r.random() < 0.1:
        p["additionalProperties"] = False
    f = {"name": nm, "description": desc, "parameters": p}
    if r.random() < 0.07:
        f["strict"] = True
    if r.random() < 0.05:
        f.pop("description")
    return {"type": "function", "function": f}


class Fam:
    def __init__(s, r, ev, key):
        names, descs, ps, s.vals, s.users, s.res, s.ans = FAM[key]
        s.key = key
        s.name = held(
            r,
            ev,
            lambda: (
                r.choice(names)
                if r.random() < 0.75
                else r.choice(names) + r.choice(["_v2", "_tool", "2", "_api"])
                if r.random() < 0.7
                else made_word(r, ev, 2, 3) + "_" + r.choice(WORDS)
            ),
        )
        s.alias = {}
        props = {}
        req = []
        for slot, (al, t, ds, rq) in ps.items():
            a = r.choice(al)
            while a in s.alias.values():
                a = r.choice(al + [a + "_2"])
            s.alias[slot] = a
            props[a] = {"type": t}
            if t == "array":
                props[a]["items"] = {"type": "string"}
            if r.random() < 0.9:
                props[a]["description"] = r.choice(ds)
            if rq:
                req.append(a)
        s.tool = wrap(r, s.name, r.choice(descs), props, req)

    def use(s, r, ev):
        """-> (user text, call, result text, answer)"""
        v = s.vals(r, ev)
        t = r.choice(s.users)
        force = {}
        for tag, slot in (("ON", "on"), ("REP", "rep"), ("FAST", "fast"), ("ADMIN", "admin")):
            if t.startswith(tag + ":"):
                t = t[len(tag) + 1 :]
                force[slot] = True
        v |= force
        fmt = {k: (", ".join(x) if isinstance(x, list) else x) for k, x in v.items()}
        if "on" in v:
            fmt["onoff"] = "on" if v["on"] else "off"
        u = t.format(**fmt)
        args = {s.alias[k]: v[k] for k in s.alias if "{" + k + "}" in t or k in force or (k == "on")}
        return u, {"name": s.name, "arguments": args}, v


class Rand:
    key = None

    def __init__(s, r, ev):
        s.vb, s.ob = held(r, ev, lambda: (r.choice(VB), r.choice(OB)))
        w = [s.vb, s.ob] + ([r.choice(KW)] if r.random() < 0.2 else [])
        s.name = (
            style(r, w) if r.random() < 0.85 else made_word(r, ev, 2, 3) + r.choice(["", "_" + made_word(r, ev, 1, 3)])
        )
        s.types = {}
        props = {}
        req = []
        for _ in range(r.choice([0, 1, 1, 2, 2, 2, 3, 3, 4])):
            k = (
                r.choice(KW)
                if r.random() < 0.6
                else r.choice(KW) + r.choice(["_", "_", ""]) + r.choice(KW + ["id", "name", "max", "min"])
            )
            if r.random() < 0.1:
                k = made_word(r, ev, 2, 3)
            if k in s.types:
                continue
            t = r.choice(W("string string string integer integer number boolean array object"))
            s.types[k] = t
            props[k] = {"type": t}
            if r.random() < 0.6:
                props[k]["description"] = r.choice(
                    [f"The {k.replace('_', ' ')}", f"{k.replace('_', ' ').capitalize()} of the {s.ob}", f"Value of {k}"]
                )
            if r.random() < 0.7:
                req.append(k)
        s.req = req
        s.tool = wrap(
            r,
            s.name,
            f"{s.vb.capitalize()} {'an' if s.ob[0] in 'aeiou' else 'a'} {s.ob}{r.choice(['.', '', ' in the system.'])}",
            props,
            req,
        )

    def use(s, r, ev):
        ks = [k for k in s.types if k in s.req or r.random() < 0.5]
        v = {k: typed(r, ev, s.types[k]) for k in ks}
        o = list(ks)
        r.shuffle(o)
        direct = r.random() < 0.55
        P = lambda sep, eq: sep.join(f"{k}{eq}{show(v[k])}" for k in o)
        head = (
            r.choice(
                ["Call {n}", "Use {n}", "Run {n}", "Please call the function {n}", "Use the tool {n}", "Execute {n}"]
            ).format(n=s.name)
            if direct
            else r.choice(
                ["{V} the {o}", "Please {v} the {o}", "I want you to {v} the {o}", "Can you {v} the {o}", "{V} a {o}"]
            ).format(V=s.vb.capitalize(), v=s.vb, o=s.ob)
        )
        if not o:
            u = head + "."
        else:
            u = r.choice(
                [
                    lambda: head + " with " + P(", ", " = "),
                    lambda: head + " with " + P(" and ", " "),
                    lambda: head + " with " + P(" and ", " set to "),
                    lambda: head + ".\n" + P("\n", ": "),
                    lambda: head + ": " + P(", ", "="),
                    lambda: head + " using " + P(", ", " "),
                    lambda: head + ", " + P(", ", ": "),
                    lambda: head + " with these values: " + dumps({k: v[k] for k in o}),
                ]
            )()
        return u, {"name": s.name, "arguments": {k: v[k] for k in s.types if k in v}}, v

    def res(s, r, v):
        k = r.randrange(4)
        if k == 0:
            return dict(status="ok", id=r.choice("ABCDEFG") + str(r.randint(10, 999)))
        if k == 1:
            return {r.choice(KW): r.choice([r.randint(0, 999), r.choice(WORDS)]) for _ in range(r.randint(1, 3))}
        if k == 2:
            return sentence(r)
        return dict(result=r.choice([r.randint(0, 999), r.choice(WORDS), True, False]))

    def ans(s, v, o):
        if isinstance(o, str):
            return f"The tool {s.name} says: {o}"
        return "Done. " + ", ".join(f"{k}: {show(x)}" for k, x in o.items()) + "."


def pick_tools(r, ev, n, ban=()):
    out, keys, names = [], set(ban), set()
    while len(out) < n:
        t = Rand(r, ev) if r.random() < 0.5 else Fam(r, ev, r.choice(list(FAM)))
        if t.name in names or (t.key and t.key in keys):
            continue
        if (
            t.key == "event"
            and "todo" in keys
            or t.key == "run"
            and "shell" in keys
            or t.key == "shell"
            and "run" in keys
        ):
            continue
        if not t.key and any(x.key is None and (x.vb, x.ob) == (t.vb, t.ob) for x in out):
            continue
        names.add(t.name)
        out.append(t)
        if t.key:
            keys.add(t.key)
    return out


CALL = lambda cs: {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": c} for c in cs]}
TOOL = lambda s: {"role": "tool", "content": s}


def episode(r, ev, T, parallel=None):
    """user -> call(s) [-> results -> answer]; returns messages"""
    t = r.choice(T)
    m = []
    if parallel or (parallel is None and r.random() < 0.18):
        t2 = r.choice(T) if r.random() < 0.5 else t
        (u1, c1, v1), (u2, c2, v2) = t.use(r, ev), t2.use(r, ev)
        if len(u1) + len(u2) < 400 and not (t.key == t2.key == "now"):
            u = (
                u1.rstrip(".") + r.choice([". Also: ", " and then: ", ". And also this: ", "\nThen: "]) + u2
                if u1[-1] != "?"
                else u1 + r.choice([" And also: ", " Then: ", " And: "]) + u2
            )
            if t is t2 and t.key in ("weather", "time") and r.random() < 0.7:
                a = t.alias["city"]
                w = t.key == "weather"
                x, y = c1["arguments"][a], c2["arguments"][a]
                if x != y:
                    u = r.choice(
                        [
                            "What is the weather in {x} and in {y}?",
                            "Compare the weather in {x} and {y}.",
                            "Weather in {x} and {y}?",
                        ]
                        if w
                        else ["What time is it in {x} and in {y}?", "Tell me the time in {x} and {y}."]
                    ).format(x=x, y=y)
                    c1["arguments"], c2["arguments"] = {a: x}, {a: y}
            m = [U(u), CALL([c1, c2])]
            pend = [(t, v1), (t2, v2)]
        else:
            m = [U(u1), CALL([c1])]
            pend = [(t, v1)]
    else:
        u, c, v = t.use(r, ev)
        m = [U(u if r.random() < 0.85 else r.choice(["Hi! ", "Please help me. ", "Hello. ", "Next: "]) + u), CALL([c])]
        pend = [(t, v)]
    return m, pend


def results(r, ev, pend):
    ans, m = [], []
    for t, v in pend:
        if r.random() < 0.08:
            e = r.choice(["not found", "timeout", "permission denied", "invalid value", "service unavailable"])
            m.append(TOOL(dumps({"error": e})))
            ans.append(f"The tool reported an error: {e}.")
        else:
            o = t.res(r, v)
            m.append(TOOL(o if isinstance(o, str) else dumps(o)))
            ans.append(t.ans(v, o))
    return m + [A(" ".join(ans) if not any("\n" in a for a in ans) else "\n".join(ans))]


def d_tool_call(r, ev, parallel=None):
    """One request, the call is the target."""
    T = pick_tools(r, ev, r.choice([1, 2, 2, 3, 4]))
    m, _ = episode(r, ev, T, parallel)
    return dict(
        messages=maybe_sys(r) + m,
        tools=[t.tool for t in T],
        skill="tool_call_parallel" if len(m[-1]["tool_calls"]) > 1 else "tool_call",
        short=None,
    )


def d_tool_result(r, ev):
    T = pick_tools(r, ev, r.choice([1, 1, 2, 3]))
    m, p = episode(r, ev, T)
    return dict(
        messages=maybe_sys(r) + m + results(r, ev, p), tools=[t.tool for t in T], skill="tool_result", short=None
    )


def plain_for(r, ev, T):
    while True:
        d = qa(r, ev, r.choice([q_chat, q_fact, q_arith, q_calendar, q_letters, q_list, q_unit]))
        if CONFLICT.get(d["k"]) not in [t.key for t in T] or d["k"] not in CONFLICT:
            return d


def d_tool_none(r, ev):
    """Tools are offered but none fits: answer plainly, or say that no tool fits."""
    T = pick_tools(r, ev, r.choice([1, 2, 2, 3]))
    if r.random() < 0.6:
        d = plain_for(r, ev, T)
        m = [U(d["u"]), A(d["a"])]
    else:
        T2 = pick_tools(r, ev, 1, ban=[t.key for t in T] + ["calc", "run", "shell", "translate"])
        if T2[0].key is None and any(t.key is None and (t.vb == T2[0].vb and t.ob == T2[0].ob) for t in T):
            T2 = [
                Fam(
                    r,
                    ev,
                    r.choice([k for k in FAM if k not in [t.key for t in T] + ["calc", "run", "shell", "translate"]]),
                )
            ]
        u, c, v = T2[0].use(r, ev)
        m = [U(u), A(NO_TOOL)]
    return dict(messages=maybe_sys(r) + m, tools=[t.tool for t in T], skill="tool_none", short=None)


def d_tool_chat(r, ev):
    """Several turns with tools: calls, results, plain questions, follow-ups."""
    T = pick_tools(r, ev, r.choice([1, 2, 3]))
    m = maybe_sys(r)
    for _ in range(r.randint(2, 4)):
        x = r.random()
        if x < 0.65:
            e, p = episode(r, ev, T, parallel=False if r.random() < 0.7 else None)
            m += e + results(r, ev, p)
        else:
            d = plain_for(r, ev, T)
            m += [U(d["u"]), A(d["a"])]
    if r.random() < 0.5 or ev:
        e, p = episode(r, ev, T, parallel=False)
        m += e
    return dict(messages=m, tools=[t.tool for t in T], skill="tool_multi_turn", short=None)
