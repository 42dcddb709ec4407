// Package command owns what the commands of the program share: environment, streams and signals, the settings of a
// node, errors of wrong use, output as text or JSON, progress, and clients of the HTTP API and the admin API of a
// node.
package command
