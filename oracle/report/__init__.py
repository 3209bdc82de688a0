"""A result as text, Markdown, HTML and JUnit XML, all from one outline."""
