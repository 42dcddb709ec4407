package docs_test

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	blocks = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	code   = regexp.MustCompile("`[^`\n]*`")
	link   = regexp.MustCompile(`\[[^\[\]]*\]\(([^()\s]+)\)`)
)

// prose is a page without its blocks of code. Lines keep their numbers.
func (p page) prose() string {
	return blocks.ReplaceAllStringFunc(p.text, func(s string) string {
		return strings.Repeat("\n", strings.Count(s, "\n"))
	})
}

// anchors are the names that headings of a page can be linked by.
func (p page) anchors() map[string]bool {
	out, had := map[string]bool{}, map[string]int{}
	for line := range strings.Lines(p.prose()) {
		m := heading.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			continue
		}
		name := anchor(m[1])
		if n := had[name]; n > 0 {
			out[fmt.Sprint(name, "-", n)] = true
		}
		had[name]++
		out[name] = true
	}
	return out
}

// anchor returns the anchor that the usual hosts of Markdown generate for a heading.
func anchor(text string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(regexp.MustCompile(`\[([^\[\]]*)\]\([^()]*\)`).ReplaceAllString(text, "$1")) {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			b.WriteRune(r)
		case r == ' ':
			b.WriteByte('-')
		}
	}
	return b.String()
}

// brokenLinks returns the relative links of a page without a target.
func brokenLinks(p page, all map[string]page, exists func(string) bool) (out []string) {
	number := 0
	for line := range strings.Lines(p.prose()) {
		number++
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(line, "code"), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			to, at, hasAnchor := strings.Cut(m[1], "#")
			target := p.path
			if to != "" {
				target = path.Join(path.Dir(p.path), to)
			}
			if !exists(target) {
				out = append(out, fmt.Sprintf("%s:%d: %s does not exist", p.path, number, m[1]))
				continue
			}
			if q, ok := all[target]; hasAnchor && (!ok || !q.anchors()[at]) {
				out = append(out, fmt.Sprintf("%s:%d: %s has no heading for #%s", p.path, number, target, at))
			}
		}
	}
	return out
}

func TestLinks_HaveTargets(t *testing.T) {
	all, list := map[string]page{}, pages(t)
	for _, p := range list {
		all[p.path] = p
	}
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(root, filepath.FromSlash(name)))
		return err == nil
	}
	for _, p := range list {
		for _, problem := range brokenLinks(p, all, exists) {
			t.Error(problem)
		}
	}
}

func TestLinks_FindsBroken(t *testing.T) {
	other := page{path: "docs/b.md", text: "# A title: `--flag`, and more\n\n## Twice\n\n## Twice\n\n```sh\n# " +
		"no heading\n```\n"}
	all := map[string]page{other.path: other}
	exists := func(name string) bool { return name == other.path || name == "docs/a.md" }
	for text, bad := range map[string]bool{
		"[x](b.md)":                           false,
		"[x](../docs/b.md#twice-1)":           false,
		"[x](b.md#a-title---flag-and-more)":   false,
		"`[x](c.md)`":                         false,
		"[x](https://example.com/none.md#no)": false,
		"[x](c.md)":                           true,
		"[x](b.md#twice-2)":                   true,
		"[x](b.md#no-heading)":                true,
		"[`x`](#nothing)":                     true,
	} {
		p := page{path: "docs/a.md", text: text + "\n"}
		if got := brokenLinks(p, all, exists); (len(got) > 0) != bad {
			t.Errorf("%s: %q", text, got)
		}
	}
}

// TestPages_AreListed checks that the index links every page.
func TestPages_AreListed(t *testing.T) {
	var index string
	list := pages(t)
	for _, p := range list {
		if p.path == "docs/README.md" {
			index = p.text
		}
	}
	for _, p := range list {
		below, ok := strings.CutPrefix(p.path, "docs/")
		switch {
		case !ok, below == "README.md":
		// components/README.md lists those
		case strings.HasPrefix(below, "components/") && below != "components/README.md":
		case strings.HasPrefix(below, "adr/"): // the folder is linked
		case !strings.Contains(index, "("+below+")"):
			t.Errorf("docs/README.md does not list %s", p.path)
		}
	}
}
