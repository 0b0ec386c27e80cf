"""Families of tools of an assistant: weather, sums, mail, calendar, search. The fields of a family: `tool.py`."""

from chats.draws import made_word, name, phrase, sentence
from chats.facts import CAPITALS
from chats.tool_values import clock, date, email, url
from chats.words import CITIES, FOODS, HOBBIES, WORDS, W

ASSISTANT = {
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
}
