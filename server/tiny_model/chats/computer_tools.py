"""Families of tools that work on a computer: files, code, commands. The fields of a family: `tool.py`."""

from chats.draws import phrase, sentence
from chats.snippets import code
from chats.tool_values import fname, path
from chats.words import WORDS, W

COMPUTER = {
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
}
