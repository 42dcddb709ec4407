// Package bundle writes debug bundles. A debug bundle is an archive with the data that helps to find out why a node
// does not work as expected. The package owns the list of files in a bundle.
//
// A bundle contains no secrets. It omits tokens, keys, environment variables, component metadata and stored values. The
// package keeps no state and starts no goroutines.
package bundle
