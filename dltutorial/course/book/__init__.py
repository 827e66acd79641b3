"""The book: a static site of executed notebooks, exercises, the library's reference and a glossary, made by Sphinx."""
