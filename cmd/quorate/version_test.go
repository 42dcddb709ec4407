package main

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
)

func TestVersionOf_ReleaseOrDevelopmentBuild(t *testing.T) {
	t.Parallel()
	const commit = "1385e1d0a2b4c3d2e1f01385e1d0a2b4c3d2e1f0"
	for name, c := range map[string]struct{ linked, module, commit, want string }{
		"make build":        {"0.9.0-dev+1385e1d0a2b4", "(devel)", commit, "0.9.0-dev+1385e1d0a2b4"},
		"nothing is known":  {"", "(devel)", "", "0.9.0-dev"},
		"no module":         {"", "", "", "0.9.0-dev"},
		"only a commit":     {"", "(devel)", commit, "0.9.0-dev+1385e1d0a2b4"},
		"clone":             {"", "v0.0.0-20261127022400-1385e1d0a2b4", commit, "0.9.0-dev+1385e1d0a2b4"},
		"changes":           {"", "v0.0.0-20261127022400-1385e1d0a2b4+dirty", "", "0.9.0-dev+1385e1d0a2b4.dirty"},
		"changes at a tag":  {"", "v0.9.0+dirty", commit, "0.9.0-dev+1385e1d0a2b4.dirty"},
		"clone at a tag":    {"", "v0.9.0", commit, "0.9.0"},
		"clone after a tag": {"", "v0.9.1-0.20261127022400-1385e1d0a2b4", commit, "0.9.0-dev+1385e1d0a2b4"},
		"install a release": {"", "v0.9.1", "", "0.9.1"},
		"a candidate":       {"", "v1.0.0-rc.1", "", "1.0.0-rc.1"},
		"install a branch":  {"", "v0.0.0-20261127022400-1385e1d0a2b4", "", "0.9.0-dev+1385e1d0a2b4"},
		"after a candidate": {"", "v1.0.0-b.0.20261127022400-1385e1d0a2b4", "", "0.9.0-dev+1385e1d0a2b4"},
		"a short commit":    {"", "(devel)", "1385", "0.9.0-dev+1385"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			info := &debug.BuildInfo{Main: debug.Module{Version: c.module}}
			if c.commit != "" {
				info.Settings = []debug.BuildSetting{{Key: "vcs.revision", Value: c.commit}}
			}
			if got := versionOf("0.9.0", c.linked, info); got.Version != c.want || got.Commit != c.commit {
				t.Errorf("got %+v, want %s at %q", got, c.want, c.commit)
			}
		})
	}
}

// TestVersion_IsTheNewestOfTheChangelog compares the number of the sources with the first heading of the changelog.
func TestVersion_IsTheNewestOfTheChangelog(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "CHANGELOG.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "\n## ")
	heading, _, _ := strings.Cut(after, "\n")
	if newest, _, _ := strings.Cut(heading, " "); newest != strings.TrimSpace(number) {
		t.Errorf("the changelog begins with %q, cmd/quorate/VERSION has %q", newest, strings.TrimSpace(number))
	}
}
