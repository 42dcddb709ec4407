// Package statecopy copies and compares the state of one application in two stores.
//
// It owns the rules of a copy: which values are the same, what is written, kept or deleted, and the report of that. A
// Source is read and a Target is also written; both hide how the store is reached. Opened is a Source for a store that
// this process has opened itself, such as a Redis that no node knows. While Run runs, one goroutine lists the keys and
// several copy values.
package statecopy
