// Package deploy checks the files of this folder against the product: names of metrics, settings and pages. It also
// checks them with promtool, systemd and other tools. It owns the processes and containers that it starts.
package deploy
