// Package credentials manages the keys and certificates for traffic between nodes, and the file with the API tokens
// of applications. It applies changes of the files while the node runs.
//
// It owns reading these files, renewing the certificate, and securing the peer port and gossip. Package
// internal/trust defines tokens and certificates.
//
// Goroutines: those in which callers run Follow.
package credentials
