package cli_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/cmd/internal/settings"
)

const docs = "../../../docs/"

func TestDocs_TableOfSettings(t *testing.T) {
	var b strings.Builder
	for _, g := range settings.Groups() {
		fmt.Fprintf(&b, "### %s\n\n| Flag | Environment | File | Default | Meaning |\n"+
			"| --- | --- | --- | --- | --- |\n", g)
		for _, st := range settings.New().All() {
			if st.Group == g {
				b.WriteString(settingRow(st))
			}
		}
		b.WriteString("\n")
	}
	section(t, docs+"configuration.md", "settings", b.String())
}

func settingRow(st *settings.Setting) string {
	code := func(words ...string) string {
		var out []string
		for _, w := range words {
			if w != "" {
				out = append(out, "`"+w+"`")
			}
		}
		return strings.Join(out, ", ")
	}
	flags := []string{st.Flag()}
	for _, a := range st.Aliases {
		flags = append(flags, "--"+a)
	}
	usage := strings.ReplaceAll(st.Usage, "|", `\|`)
	if words := st.Words(); words != nil && !strings.Contains(usage, words[0]) {
		usage += ": " + code(words...)
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s |\n", code(flags...), code(st.Env...), code(st.Key),
		code(st.Default), usage)
}

func TestDocs_ListOfCommands(t *testing.T) {
	c := newConsole(t)
	var b strings.Builder
	for _, command := range []string{"run", "daprd", "list", "invoke", "logs", "stop", "state get", "state set",
		"state delete", "state list",
		"state watch", "state copy", "configuration get", "configuration set",
		"configuration delete", "configuration list", "configuration watch", "configuration import",
		"bench save", "bench get", "bench watch", "bench lock", "bench call", "bench publish",
		"stores",
		"status", "members", "apps", "top", "calls", "locks list", "locks release", "jobs list", "jobs get",
		"jobs run", "jobs delete", "actors list", "actors move", "actors rebalance", "publish",
		"topics list", "topics show", "topics tail", "topics replay", "topics redrive", "topics delete",
		"workflows list", "workflows show", "workflows history",
		"workflows start", "workflows raise", "workflows pause", "workflows resume", "workflows terminate",
		"workflows purge", "workflows rerun", "voters",
		"transfer-leader", "remove", "leave", "doctor", "health", "console", "dashboard", "debug bundle", "backup save",
		"backup inspect", "backup restore", "backup keygen", "rescue", "token create", "config print",
		"config validate", "version"} {
		help := c.run(append(strings.Fields(command), "--help")...).stdout
		if strings.HasPrefix(command, "config ") || command == "doctor" {
			help, _, _ = strings.Cut(help, "Application:\n")
			help += "The flags are those of run, and --json"
			if command == "doctor" {
				help += ", and --node"
			}
			help += ".\n"
		}
		fmt.Fprintf(&b, "## quorate %s\n\n```text\n%s\n```\n\n", command, strings.TrimSpace(help))
	}
	section(t, docs+"cli.md", "commands", b.String())
}

// section compares the generated part of a page with text, or rewrites it with -update.
func section(t *testing.T, path, name, text string) {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	part := regexp.MustCompile(`(?s)(<!-- generated: ` + name + ` -->\n).*?(<!-- end -->)`)
	want := part.ReplaceAllStringFunc(string(page), func(old string) string {
		m := part.FindStringSubmatch(old)
		return m[1] + "\n" + strings.TrimSpace(text) + "\n\n" + m[2]
	})
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(page)); diff != "" {
		t.Errorf("%s is out of date (go test ./cmd/internal/cli -update rewrites it):\n%s", path, diff)
	}
}
