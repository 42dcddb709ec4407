// Package statecopy copies the state of one application from one store to another, and compares the two.
//
// It owns the rules of a copy: which values count as equal, what is written, kept or deleted, and the report. A
// Source can be read, and a Target can also be written. Both hide how the store is reached. Opened is a Source for a
// store that this process itself has opened, such as a Redis that no node uses. While Run runs, one goroutine lists
// the keys and several copy values.
package statecopy
