package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// reloader is a node that can read its component files again.
type reloader interface{ Reload() }

// hangup handles SIGHUP. The signal makes the node reload its component files, or stops the node if the terminal of the
// process was closed. A process that was started with SIGHUP ignored, for example by nohup, only reloads.
type hangup struct {
	signals  chan os.Signal
	ignored  bool
	terminal bool
}

// onHangup begins to receive SIGHUP. Call it before the node opens.
func onHangup() *hangup {
	h := &hangup{signals: make(chan os.Signal, 1), ignored: signal.Ignored(syscall.SIGHUP), terminal: hasTerminal()}
	signal.Notify(h.signals, syscall.SIGHUP)
	return h
}

// hasTerminal reports whether the process has a terminal.
func hasTerminal() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	_ = tty.Close() // read only
	return true
}

// follow handles signals for n until ctx ends. stop stops the node.
func (h *hangup) follow(ctx context.Context, n Node, stop func()) {
	defer signal.Stop(h.signals)
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.signals:
		}
		if h.terminal && !h.ignored && !hasTerminal() {
			stop()
			return
		}
		if r, ok := n.(reloader); ok {
			r.Reload()
		}
	}
}
