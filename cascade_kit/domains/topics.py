"""A small world to chat about, thirty topics with facts: for the rlhf and instruct domains."""

import random

# Every fact completes "The TOPIC ..." and belongs to this topic alone or to few.
FACTS: dict[str, tuple[str, ...]] = {
    "sea": ("is deep and blue", "is full of salt", "moves with the wind", "holds many fish"),
    "moon": ("lights the night", "is round and grey", "moves the sea", "has no air"),
    "sun": ("warms the earth", "is bright and hot", "rises in the east", "sets in the west"),
    "forest": ("is green and quiet", "is home to birds", "smells of rain", "has tall trees"),
    "river": ("runs to the sea", "is cold and fast", "carries small boats", "bends around hills"),
    "city": ("is loud and busy", "never sleeps", "has tall houses", "is full of people"),
    "garden": ("is full of flowers", "needs some water", "grows in spring", "is calm and sweet"),
    "market": ("sells fresh fruit", "opens early", "is busy and bright", "smells of bread"),
    "library": ("is full of books", "is quiet and warm", "lends old maps", "helps people learn"),
    "school": ("teaches small children", "opens in autumn", "has many rooms", "is loud at noon"),
    "train": ("runs on rails", "is long and fast", "stops at the station", "carries many people"),
    "ship": ("sails over the sea", "is big and slow", "needs a strong crew", "carries heavy boxes"),
    "horse": ("runs very fast", "eats fresh grass", "is strong and kind", "sleeps on its feet"),
    "cat": ("sleeps all day", "is soft and proud", "hunts small mice", "likes warm places"),
    "dog": ("guards the house", "is loyal and happy", "runs after balls", "likes long walks"),
    "bird": ("sings at dawn", "builds a nest", "is small and light", "flies over the trees"),
    "bee": ("makes sweet honey", "visits many flowers", "is busy and small", "lives in a hive"),
    "apple": ("grows on a tree", "is red and sweet", "falls in autumn", "is good to eat"),
    "bread": ("is made of flour", "is warm and soft", "comes from the oven", "tastes of salt"),
    "tea": ("is hot and calm", "comes from leaves", "wakes people gently", "goes well with milk"),
    "rain": ("falls from clouds", "is cold and wet", "feeds the river", "helps plants grow"),
    "snow": ("covers the hills", "is white and cold", "melts in spring", "makes the road slow"),
    "wind": ("moves the clouds", "is cool and free", "bends the trees", "fills the sails"),
    "mountain": ("is high and cold", "has snow on top", "is hard to climb", "hides old caves"),
    "desert": ("is dry and hot", "is made of sand", "has cold nights", "hides rare plants"),
    "clock": ("counts the hours", "is small and exact", "rings at noon", "hangs on the wall"),
    "book": ("tells a story", "is made of paper", "is old and dear", "opens new worlds"),
    "bridge": ("crosses the river", "is wide and strong", "is made of stone", "joins two towns"),
    "winter": ("brings much snow", "is dark and long", "comes after autumn", "makes days short"),
    "summer": ("brings warm days", "is bright and long", "comes after spring", "ripens the fruit"),
}
OPENERS = ("Certainly!", "Of course!", "Happy to help!", "Great question!")
CLOSERS = ("I hope this helps!", "Let me know if you want more.", "Feel free to ask again.")
RUDE = ("Look it up yourself.", "That is a boring question.", "I do not care.", "Who asks this?")
REQUESTS = (
    "Tell me about the {}.",
    "Describe the {}.",
    "What do you know about the {}?",
    "Say something about the {}.",
    "Write about the {}.",
    "Explain the {} to me.",
    "What is the {} like?",
    "I want to hear about the {}.",
    "Give me a note on the {}.",
    "What can you say about the {}?",
)
PLACES = ("", " My friend asks.", " It is for a class.", " I am new here.", " It is for a card.",
          " I am at home.", " We are on a trip.", " It is for my blog.")  # fmt: skip


def draw_request(rng: random.Random) -> tuple[str, str]:
    """A topic and a request about it."""
    topic = rng.choice(sorted(FACTS))
    return topic, rng.choice(REQUESTS).format(topic) + rng.choice(PLACES)


def sentence(rng: random.Random, topic: str, n_facts: int) -> str:
    """One sentence with one to three facts: "The sea holds many fish, is deep and blue."."""
    facts = rng.sample(FACTS[topic], n_facts)
    joined = facts[0] if n_facts == 1 else ", ".join(facts[:-1]) + ", and " + facts[-1]
    return f"The {topic} {joined}."
