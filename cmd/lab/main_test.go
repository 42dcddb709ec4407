package main

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
)

func TestRun_RefusesWhatItDoesNotKnow(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{nil, "Usage: lab COMMAND"},
		{[]string{"help"}, "demo-actors"},
		{[]string{"dance"}, `unknown command "dance"`},
		{[]string{"demo", "-nonsense"}, "flag provided but not defined: -nonsense"},
		{[]string{"cluster", "extra"}, `takes 0 arguments, not 1: ["extra"]`},
		{[]string{"turn-clock"}, "takes 1 arguments, not 0"},
	} {
		var out strings.Builder
		if code := run(t.Context(), c.args, &out); code != 2 || !strings.Contains(out.String(), c.says) {
			t.Errorf("%q: code %d, output %q lacks %q", c.args, code, out.String(), c.says)
		}
	}
}

func TestRun_PrintsTheErrorOfACommand(t *testing.T) {
	var out strings.Builder
	code := run(t.Context(), []string{"app", "nonsense"}, &out)
	if code != 1 || out.String() != "lab app: give the application: orders or stock\n" {
		t.Errorf("code %d, output %q", code, out.String())
	}
}

// TestMakefileCallsExistingCommands checks each call of lab in the Makefile and in .ci/run: the subcommand and its
// flags exist.
func TestMakefileCallsExistingCommands(t *testing.T) {
	known := map[string]*flag.FlagSet{}
	for _, c := range subcommands() {
		known[c.name] = flag.NewFlagSet(c.name, flag.ContinueOnError)
		c.make(known[c.name])
	}
	seen := map[string]bool{}
	for _, file := range []string{"../../Makefile", "../../.ci/run"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		calls := regexp.MustCompile(`(?:run \./cmd/lab|\(BIN\)/lab) ([a-z]\S*)([^\n;&]*)`)
		for _, call := range calls.FindAllStringSubmatch(string(text), -1) {
			name, rest := call[1], call[2]
			if known[name] == nil {
				t.Errorf("%s calls lab %s", file, name)
				continue
			}
			seen[name] = true
			for _, f := range regexp.MustCompile(` -([a-z-]+)`).FindAllStringSubmatch(rest, -1) {
				if known[name].Lookup(f[1]) == nil {
					t.Errorf("%s calls lab %s -%s", file, name, f[1])
				}
			}
		}
	}
	for _, name := range []string{"cluster", "demo", "demo-actors", "demo-workflow", "prove", "turn-clock"} {
		if !seen[name] {
			t.Errorf("no call of lab %s was found", name)
		}
	}
}
