"""What the five nodes of the graph ask. The first two come with the chart, the others without."""

OBSERVE = """You look at a chart.

Question: {question}

Say in two sentences what kind of chart it is, what it shows, and where the answer is in it."""

EXTRACT = """You read a chart.

Question: {question}

What was seen in it: {observation}

Write down all data that the question needs, one per line as
label | value
and nothing else."""

CALCULATE = """You answer a question about a chart, from its data.

Question: {question}

Data:
{data}

Work it out, and end with <answer>...</answer>: a number or a name, without a unit."""

CHECK = """You check an answer to a question about a chart.

Question: {question}

Data:
{data}

Answer: {answer}

Was the right data used, and is the sum right? Name what is wrong. End with the line
THE ANSWER IS RIGHT or the line THE ANSWER IS WRONG."""

REFINE = """You mend an answer to a question about a chart.

Question: {question}

Data:
{data}

Answer: {answer}

What a reviewer says: {feedback}

Work it out again, and end with <answer>...</answer>: a number or a name, without a unit."""
