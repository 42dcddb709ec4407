// Package credentials manages the keys and certificates for traffic between nodes, and the file with the API tokens of
// applications. It applies changes of these files while the node runs.
//
// The package reads the files, renews the certificate, and secures the peer port and gossip. Package internal/trust
// defines tokens and certificates.
//
// Goroutines: those in which callers run Follow.
package credentials
