// Package command owns what the commands of the program share. This is their environment, streams and signals, the
// settings of a node, errors of wrong use, and output as text or JSON. It is also the display of progress, and the
// clients of the HTTP API and the admin API of a node.
package command
