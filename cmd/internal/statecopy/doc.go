// Package statecopy copies the state of one application from one store to another, and compares the two stores.
//
// The package owns the rules of a copy: which values count as equal, which keys are written, kept or deleted, and what
// the report contains. It reads a store through the interface Source, and writes a store through the interface Target.
// The type Opened is a Source for a store that this process itself has opened, such as a Redis server that no node
// uses. While Run runs, one goroutine lists the keys and several copy values.
package statecopy
