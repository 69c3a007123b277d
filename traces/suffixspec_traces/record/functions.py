"""Small functions, each right and wrong, from which coding tasks are made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exercise:
    """A function, a one-line fault put into it, and checks that tell the two apart."""

    name: str
    code: str
    right: str  # the line as it should be
    wrong: str  # the line as the task has it
    hint: str
    checks: tuple[str, ...]

    @property
    def faulty(self) -> str:
        """The code with its fault."""
        assert self.right in self.code
        return self.code.replace(self.right, self.wrong)


EXERCISES = (
    Exercise(
        "average",
        "def average(values):\n    total = 0\n    for value in values:\n        total += value\n"
        "    return total / len(values)\n",
        "total / len(values)",
        "total / (len(values) - 1)",
        "the sum must be divided by the number of values",
        ("average([2, 4, 6]) == 4", "average([5]) == 5"),
    ),
    Exercise(
        "count_words",
        "def count_words(text):\n    counts = {}\n    for word in text.lower().split():\n"
        "        counts[word] = counts.get(word, 0) + 1\n    return counts\n",
        "counts.get(word, 0) + 1",
        "counts.get(word, 1) + 1",
        "a word seen for the first time must count as 1",
        ('count_words("a b A") == {"a": 2, "b": 1}', 'count_words("") == {}'),
    ),
    Exercise(
        "clamp",
        "def clamp(value, low, high):\n    if value < low:\n        return low\n"
        "    if value > high:\n        return high\n    return value\n",
        "return high",
        "return low",
        "a value above the range must give the upper limit",
        ("clamp(15, 0, 10) == 10", "clamp(-1, 0, 10) == 0", "clamp(5, 0, 10) == 5"),
    ),
    Exercise(
        "is_palindrome",
        "def is_palindrome(text):\n    letters = [c for c in text.lower() if c.isalnum()]\n"
        "    return letters == letters[::-1]\n",
        "letters[::-1]",
        "letters[::1]",
        "the letters must be compared with their reverse",
        ('is_palindrome("Never odd or even")', 'not is_palindrome("suffix")'),
    ),
    Exercise(
        "fibonacci",
        "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n"
        "    return a\n",
        "a, b = b, a + b",
        "a, b = b, a + a",
        "each number is the sum of the two before it",
        ("fibonacci(10) == 55", "fibonacci(0) == 0"),
    ),
    Exercise(
        "flatten",
        "def flatten(rows):\n    result = []\n    for row in rows:\n        result.extend(row)\n"
        "    return result\n",
        "result.extend(row)",
        "result.append(row)",
        "the items of each row must be added, not the row itself",
        ("flatten([[1, 2], [3]]) == [1, 2, 3]", "flatten([]) == []"),
    ),
    Exercise(
        "to_celsius",
        "def to_celsius(fahrenheit):\n    return round((fahrenheit - 32) * 5 / 9, 1)\n",
        "(fahrenheit - 32) * 5 / 9",
        "(fahrenheit - 32) * 9 / 5",
        "the difference must be multiplied by 5 / 9",
        ("to_celsius(212) == 100", "to_celsius(32) == 0"),
    ),
    Exercise(
        "merge_sorted",
        "def merge_sorted(left, right):\n    result = []\n    while left and right:\n"
        "        source = left if left[0] <= right[0] else right\n"
        "        result.append(source.pop(0))\n    return result + left + right\n",
        "return result + left + right",
        "return result + left",
        "what is left over in both lists must be added",
        ("merge_sorted([1, 4], [2, 3, 9]) == [1, 2, 3, 4, 9]",),
    ),
    Exercise(
        "parse_price",
        'def parse_price(text):\n    digits = text.replace("$", "").replace(",", "")\n'
        "    return float(digits)\n",
        '.replace(",", "")',
        '.replace(",", ".")',
        "a comma separates thousands and must be removed",
        ('parse_price("$1,299.50") == 1299.5', 'parse_price("12") == 12'),
    ),
    Exercise(
        "chunk",
        "def chunk(items, size):\n    starts = range(0, len(items), size)\n"
        "    return [items[i:i + size] for i in starts]\n",
        "range(0, len(items), size)",
        "range(0, len(items))",
        "the range must go forward by size",
        ("chunk([1, 2, 3], 2) == [[1, 2], [3]]", "chunk([], 3) == []"),
    ),
    Exercise(
        "initials",
        'def initials(name):\n    return "".join(part[0].upper() for part in name.split())\n',
        "part[0].upper()",
        "part[-1].upper()",
        "the first letter of each part is wanted",
        ('initials("ada king lovelace") == "AKL"',),
    ),
    Exercise(
        "running_total",
        "def running_total(values):\n    total = 0\n    result = []\n    for value in values:\n"
        "        total += value\n        result.append(total)\n    return result\n",
        "result.append(total)",
        "result.append(value)",
        "the total so far must be appended",
        ("running_total([1, 2, 3]) == [1, 3, 6]",),
    ),
)
