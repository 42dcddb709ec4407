// Package deploy tests the files of this folder. The metrics, settings and pages that these files name must exist in
// the product. The tests also check the files with promtool, systemd and other tools. The tests end the processes and
// containers that they start. The package owns these processes and containers.
package deploy
