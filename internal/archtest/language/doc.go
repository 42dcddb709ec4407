// Package language checks that no text of the repository uses an unwanted word, and that no line has more than 120
// columns. It looks for unwanted words in Go comments, string literals, documentation and deployment files. It checks
// the length of lines in Go files, pages, style sheets, YAML, scripts and Makefiles. Test data, golden files and
// generated files are not checked. It owns the list of unwanted words.
package language
