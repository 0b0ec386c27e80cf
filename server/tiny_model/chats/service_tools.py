"""Families of tools of services: money, translation, home, shop, accounts. The fields of a family: `tool.py`."""

from chats.draws import name, phrase, randstr, sentence
from chats.tool_values import CUR, clock
from chats.words import ADJ, CITIES, NOUNS, WORDS, W

SERVICE = {
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
