package cli_test

import (
	"strings"
	"testing"
)

// TestHelp_EveryCommandHasAGroup checks that the help sorts all commands by what people do with them. A new command
// belongs to a group in root.go.
func TestHelp_EveryCommandHasAGroup(t *testing.T) {
	c := newConsole(t)
	text := c.run("--help").stdout
	for _, heading := range []string{"Use: ", "Operate: ", "Inspect: "} {
		if !strings.Contains(text, "\n"+heading) {
			t.Errorf("no group %q", heading)
		}
	}
	_, others, _ := strings.Cut(text, "Additional Commands:\n")
	others, _, _ = strings.Cut(others, "\n\n")
	for line := range strings.Lines(others) {
		if name, _, _ := strings.Cut(strings.TrimSpace(line), " "); name != "completion" && name != "help" {
			t.Errorf("%s has no group", name)
		}
	}
}
