// Package bundle writes debug bundles: archives with the data that is needed to find out why a node misbehaves.
//
// It owns the list of files in a bundle. It keeps no state and starts no goroutines. A bundle has no secrets: tokens,
// keys, environment variables, component metadata and stored values are left out.
package bundle
