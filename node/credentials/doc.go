// Package credentials manages the keys and certificates for traffic between nodes, and the file with the API tokens of
// applications. It applies changes of these files while the node runs.
//
// The package reads the files, renews the certificate, and secures the peer port and gossip. Package internal/trust
// defines tokens and certificates.
//
// The package starts no goroutines. Callers run Follow in goroutines of their own.
package credentials
