// Package command has what the commands of the program share. It owns their environment, streams and signals, the
// settings of a node, usage errors, and output as text or JSON. It also owns the display of progress, and the clients
// of the HTTP API and the admin API of a node.
package command
