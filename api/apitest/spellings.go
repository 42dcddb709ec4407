package apitest

import (
	"fmt"
	"strings"
)

// Spellings returns variants of path that some server might treat as the same path. For example, for "/a/b" it returns
// "/%61/b", "//a/b", "/a/./b", "/a;x/b" and "/A/b". path must begin with a slash. The result does not contain path
// itself, nor path with one more slash at the end.
func Spellings(path string) []string {
	var out []string
	add := func(targets ...string) { out = append(out, targets...) }
	for _, format := range []string{"%%%02X", "%%%02x", "%%25%02X"} {
		all := "/"
		for i := 1; i < len(path); i++ {
			escaped := fmt.Sprintf(format, path[i])
			all += escaped
			add(path[:i]+escaped+path[i+1:], path[:i]+escaped+path[i+1:]+"/")
		}
		add(all)
	}
	for i := range len(path) {
		switch c := path[i]; {
		case c == '/':
			for _, slash := range []string{"//", "/./", "/x/../", "/%2e/", "/x/%2e%2e/", "/%2F", "/;x/", `/\`} {
				add(path[:i] + slash + path[i+1:])
			}
			if i > 0 {
				add(path[:i]+`\`+path[i+1:], path[:i]+";x"+path[i:])
			}
		case c >= 'a' && c <= 'z':
			add(path[:i] + string(c-'a'+'A') + path[i+1:])
		}
	}
	for _, end := range []string{
		"//", "/.", "/x/..", "/%2e", "%2F", "%2f", ";x", "/;x", `\`, "%5C", "#x", "%23x", "%3Fx", "%00", "%20", ".",
		"/*",
	} {
		add(path + end)
	}
	return append(out, strings.ToUpper(path), "//localhost"+path, `/\localhost`+path)
}
