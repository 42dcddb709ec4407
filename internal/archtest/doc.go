// Package archtest checks the house rules: which package may import which, and what no package may do. It consists of
// tests that read the source of the whole module.
//
// It owns the table of layers, which lists the imports that each package may have. It has no goroutines.
package archtest
