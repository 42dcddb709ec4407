// Package archtest holds the house rules that a compiler does not: which package may
// import which, and what no package may do. It consists of tests that read the source of
// the whole module.
//
// It owns the table of layers. It must never know what a package is for. It has no
// goroutines.
package archtest
