package command_test

import (
	"os"
	"strings"
	"testing"

	"github.com/quorate/quorate/cmd/internal/command"
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
