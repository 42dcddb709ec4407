package command_test

import (
	"os"
	"strings"
	"testing"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// Scripts and service managers give programs the null device, which is a character device, as a terminal is.
func TestIsTerminal_FalseForTheNullDeviceAndPipes(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	testutil.Must(t, err)
	defer null.Close()
	read, write, err := os.Pipe()
	testutil.Must(t, err)
	defer read.Close()
	defer write.Close()
	for name, stream := range map[string]any{"null device": null, "pipe": read, "reader": strings.NewReader("")} {
		if command.IsTerminal(stream) {
			t.Errorf("%s: it counts as a terminal", name)
		}
	}
}

// TestInterruptible_SecondSignalIsNotCaught checks that the first signal ends the context, and that signals are no
// longer delivered then. So a second signal ends the process.
func TestInterruptible_SecondSignalIsNotCaught(t *testing.T) {
	signals, released := make(chan os.Signal, 1), make(chan struct{}, 2)
	s := command.Shell{Signals: func() (<-chan os.Signal, func()) {
		return signals, func() { released <- struct{}{} }
	}}
	ctx, release := s.Interruptible(t.Context())
	defer release()
	signals <- os.Interrupt
	<-ctx.Done()
	select {
	case <-released:
	default:
		t.Error("the command still catches signals")
	}
	if err := command.Because(ctx, nil); !fault.Is(err, fault.Unavailable) {
		t.Errorf("the cause is %v", err)
	}
}
