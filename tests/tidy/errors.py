#!/usr/bin/env python3
"""What a user is told when something fails: every message of the modules that users meet names a thing, says the cause, and what to do next, or
stands in errors.txt with the reason why nobody can do anything.  errors.py [TOP] [--list]"""
import os
import re
import sys

TOP = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else os.path.join(os.path.dirname(__file__), "..", ".."))
ROOMS = ("tools", "tools/library", "tools/commands", "tools/report", "trainer/config", "trainer/launch", "trainer/status", "trainer/run", "trainer/sample", "trainer/plan")
CALL = re.compile(r"\b(PD_FAIL|PD_FAIL_ERRNO|pd_error_set)\s*\(")
# Nobody can be told what to do about these: more memory, a bug of ours, somebody's own wish.
FREE = {"PD_NO_MEMORY": "memory is out", "PD_BUG": "a bug of ours", "PD_STOPPED": "somebody asked for it"}
# A thing: a value that is filled in, an option, a key, a file's name, a command.
THING = re.compile(r"%[^%]|--\w|\b\w+\.\w+|\bperdure \w+|\b(train|plan|sample|eval|report|watch|init|bench|doctor|data|ckpt|reshard|export|import|"
                   r"PERDURE_\w+|stdout)\b")
# What to do: a clause that begins with a verb, a command, or the values that are taken.
VERBS = ("add ask bring call change check choose close continue copy delete do drop export fill free give go import install keep leave let look lower make mend mount move "
         "name open order pack pass pick point put raise read remove rename repair resume run save say see set shorten show shrink start stop take tell try turn unset use "
         "wait write").split()
REMEDY = re.compile(r"(?:[;:,(] |\b(?:or|and|then|instead|first|so) |^)(?:" + "|".join(VERBS) + r")\b|\bexpected\b|--help\b|apt-get|the nearest\b|"
                    r"\bperdure \w+|did you mean|\bit is none, or|up to %|at most\b|replaces it|the next (?:below )?is|is written|\b(?:has|have) [\w, ]+ and no |\bnot (?:a|one) of\b|\bthere (?:is|are) |\btakes?\b|may be\b|must be\b|\bcontinues\b|nothing (?:to do|was)|again\b", re.I)


def arguments_of(text, start):
    """Of a call, its arguments as text, from the parenthesis on."""
    depth, at, begin, found, quoted = 0, start, start + 1, [], False
    while True:
        c = text[at]
        if quoted:
            at += c == "\\"
            quoted = c != '"'
        elif c == '"':
            quoted = True
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth == 0:
                return found + [text[begin:at]]
        elif c == "," and depth == 1:
            found.append(text[begin:at])
            begin = at + 1
        at += 1


def words_of(argument):
    """A ternary of texts counts as all of them."""
    return "".join(re.findall(r'"((?:\\.|[^"\\])*)"', argument))


def messages(path):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    for match in CALL.finditer(text):
        arguments = arguments_of(text, match.end() - 1)
        line = text.count("\n", 0, match.start()) + 1
        if match[1] == "pd_error_set":
            status, errno, rest = arguments[1], arguments[3].strip() != "0", arguments[4:]
        else:
            status, errno, rest = arguments[1], match[1].endswith("ERRNO"), arguments[2:]
        yield line, status.strip(), errno, words_of(rest[0]) if rest else ""


def exceptions():
    found = {}
    with open(os.path.join(TOP, "tests", "tidy", "errors.txt"), encoding="utf-8") as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                path, words, reason = (part.strip() for part in line.split("|"))
                if not reason:
                    sys.exit(f"errors.txt: {path}: {words}: no reason")
                found[path, words] = 0
    return found


def main():
    allowed, breaches, count = exceptions(), [], 0
    for module in ROOMS:
        folder = os.path.join(TOP, module)
        for name in sorted(os.listdir(folder)):
            if not name.endswith(".c"):
                continue
            for line, status, errno, words in messages(os.path.join(folder, name)):
                count += 1
                relative = f"{module}/{name}"
                # What another said, or what the system says, comes behind these.
                passes_on = re.search(r"%(\.[*\d]+)?s%?s?%?s?$", words) or errno
                if status in FREE:
                    continue
                lacks = [] if passes_on or THING.search(words) else ["a thing"]
                if not passes_on and not REMEDY.search(words):
                    lacks.append("what to do next")
                if not lacks:
                    continue
                known = [key for key in allowed if key[0] == relative and words.startswith(key[1])]
                for key in known:
                    allowed[key] += 1
                if not known:
                    breaches.append(f"{relative}:{line}: lacks {' and '.join(lacks)}: {words}")
    breaches += [f"errors.txt: {path}: \"{words}\" is not a message that lacks anything; delete the line" for (path, words), used in allowed.items() if not used]
    print("\n".join(breaches) if breaches else f"{count} messages say what to do, or why nobody can ({len(allowed)})")
    sys.exit(1 if breaches else 0)


main()
