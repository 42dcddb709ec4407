// Package deploy tests the files of this folder. It checks that the product has the metrics, settings and pages that
// these files name. It also checks the files with promtool, systemd and other tools. The package owns the processes and
// containers that its tests start, and ends them.
package deploy
