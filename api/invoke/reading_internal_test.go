package invoke

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// model returns the parts into which one kind of server splits the path of a request target. The target begins with a
// slash. model returns nil if the server answers with an error.
type model struct {
	name string
	read func(path string) []string
}

func models() []model {
	return []model{
		{"go URL.Path", func(path string) []string {
			return goPath(path, func(u *url.URL) []string { return afterSlash(u.Path) })
		}},
		{"go ServeMux", func(path string) []string {
			return goPath(path, func(u *url.URL) []string { return unescaped(afterSlash(u.EscapedPath())) })
		}},
		{"node url", func(path string) []string { return unescaped(afterSlash(path)) }},
		{"node URL", func(path string) []string { return unescaped(whatwgParts(path)) }},
		{"node url.parse", func(path string) []string { return unescaped(nodeParseParts(path)) }},
		{"python wsgi", func(path string) []string { return afterSlash(unescapedText(oneSlash(path))) }},
		{"python http.server", func(path string) []string { return afterSlash(unescapedText(oneSlash(path))) }},
		{"python urlparse", func(path string) []string {
			return afterSlash(unescapedText(withoutParameters(withoutHost(path))))
		}},
		{"python urlsplit", func(path string) []string { return afterSlash(unescapedText(withoutHost(path))) }},
		{"java servlet", func(path string) []string { return unescaped(cutAll(afterSlash(path))) }},
		{"java servlet, decoded first", func(path string) []string { return cutAll(afterSlash(unescapedText(path))) }},
		{"backslashes decoded and split", func(path string) []string {
			return splitBackslash(afterSlash(unescapedText(path)))
		}},
	}
}

func afterSlash(path string) []string { return strings.Split(path, "/")[1:] }

func goPath(path string, read func(*url.URL) []string) []string {
	u, err := url.ParseRequestURI(path)
	if err != nil || u.Host != "" {
		return nil
	}
	return read(u)
}

func unescaped(parts []string) []string {
	out := make([]string, len(parts))
	for i, part := range parts {
		out[i] = unescapedText(part)
	}
	return out
}

func unescapedText(text string) string {
	out, err := url.PathUnescape(text)
	if err != nil {
		panic(err) // ParseMethod refuses such paths
	}
	return out
}

// whatwgParts follows the URL standard for a URL that is relative to an http URL.
func whatwgParts(path string) []string {
	slash := func(r rune) bool { return r == '/' || r == '\\' }
	rest := path[1:]
	if rest != "" && slash(rune(rest[0])) {
		rest = strings.TrimLeft(rest, `/\`) // a host follows
		if i := strings.IndexFunc(rest, slash); i >= 0 {
			rest = rest[i+1:]
		} else {
			rest = ""
		}
	}
	return strings.Split(strings.ReplaceAll(rest, `\`, "/"), "/")
}

// nodeParseParts follows url.parse of Node for paths without '@', which Node may read as the end of user information.
func nodeParseParts(path string) []string { return afterSlash(strings.ReplaceAll(path, `\`, "/")) }

// oneSlash merges leading slashes, as Python's http.server does after the fix of CVE-2021-28861.
func oneSlash(path string) string {
	if strings.HasPrefix(path, "//") {
		return "/" + strings.TrimLeft(path, "/")
	}
	return path
}

func withoutHost(path string) string {
	rest, ok := strings.CutPrefix(path, "//")
	if !ok {
		return path
	}
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		return rest[i:]
	}
	return ""
}

func withoutParameters(path string) string {
	last := strings.LastIndexByte(path, '/') + 1
	before, _, _ := strings.Cut(path[last:], ";")
	return path[:last] + before
}

// crookedPaths are paths that servers read differently. All pass ParseMethod.
func crookedPaths() []string {
	return []string{
		"/a", "/a/", "/a/b/c", "/A/b", "//", "/a//b", "//a", "//a/b", "///a/b", "////a/b/c", "/a//", "//a//b",
		"/a;x", "/a;x/b", "/a;x/b;y", "/a;x/b;y/c", "/;x/a", "/a;", "/a;x=1;y=2/b", "/a;/b/", "/a/;x", "/a%3Bx/b",
		"/a%3bx/b;y",
		`/a\b`, `/a\b/c`, `/\a/b`, `/\/a/b`, `//\a/b`, `/\\a\b`, `/a\`, "/a%5Cb", "/a%5cb/c", `/a\b%5cc`, "/%5ca/b",
		`/a;x\b`, `/a\b;x`, `/a;x\b/c;y`,
		"/a%2Fb", "/a%2fb/c", "/%2Fa/b", "/%2f%2fa/b", "/a%2F", "/a;x%2Fb", "/a%2Fb;x", "/a;x%2fb;y/c", "/a%2f;x/b",
		"/%61/%42", "/a%20b", "/a+b", "/a%25b", "/a%252fb", "/a%3Fb", "/a%23b",
		"/a:b", "/a=b&c", "/a,b", "/...", "/a..b", "/.a", "/~a", "/a|b^c`d{e}", "/%C3%BC",
		"/http://a/b", "/http:a", "//a:80/b", "//a%2Fb/c", "//a;x/b", "//a;x",
		`//a\b/c`, "/a'b(c)*!$", "/[a]/b", "/a%2e", "/a/.%2e.",
	}
}

// testServers returns functions that start a server and return its address, by the name of the language.
func testServers() map[string]func(*testing.T) string {
	return map[string]func(*testing.T) string{"go": goServer, "node": nodeServer, "python": pythonServer}
}

// TestServerModels_MatchServers compares the models with real servers of Go, Node and Python. FuzzEveryReading relies
// on the models.
func TestServerModels_MatchServers(t *testing.T) {
	for name, start := range testServers() {
		t.Run(name, func(t *testing.T) {
			address, compared := start(t), 0
			for _, path := range crookedPaths() {
				if _, err := ParseMethod(path); err != nil {
					t.Fatalf("%s: %v", path, err)
				}
				for kind, parts := range readBy(t, address, path) {
					i := slices.IndexFunc(models(), func(m model) bool { return m.name == kind })
					if i < 0 {
						t.Fatalf("there is no model of %q", kind)
					}
					if parts == nil {
						continue // the server refuses the path
					}
					compared++
					if got := models()[i].read(path); !slices.Equal(got, parts) {
						t.Errorf("%s: %s finds %q, its model %q", path, kind, parts, got)
					}
				}
			}
			if compared < len(crookedPaths()) {
				t.Errorf("only %d answers were compared", compared)
			}
		})
	}
}

// TestEveryReading_HasWhatServersRouteOn checks that the readings of a path include the reading of each real server.
func TestEveryReading_HasWhatServersRouteOn(t *testing.T) {
	for name, start := range testServers() {
		t.Run(name, func(t *testing.T) {
			address := start(t)
			for _, path := range crookedPaths() {
				for kind, parts := range readBy(t, address, path) {
					if parts != nil && !judges(path, parts) {
						t.Errorf("%s: %s routes on %q, which is not judged", path, kind, parts)
					}
				}
			}
		})
	}
}

// FuzzEveryReading looks for paths that a server reads in a way that everyReading does not check.
func FuzzEveryReading(f *testing.F) {
	for _, path := range crookedPaths() {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		m, err := ParseMethod(path)
		if err != nil {
			return
		}
		if again, err := ParseMethod(m.Path); err != nil || again != m {
			t.Fatalf("%q becomes %+v, and that %+v, %v", path, m, again, err)
		}
		if !everyReading(m.Path, func([]string) bool { return true }) {
			return // the path has too many readings and is refused
		}
		for _, server := range models() {
			if parts := server.read(m.Path); parts != nil && !judges(m.Path, parts) {
				t.Errorf("%q: %s routes on %q, which is not judged", m.Path, server.name, parts)
			}
		}
	})
}

// judges reports whether parts are among the readings of a path.
func judges(path string, parts []string) bool {
	want := make([]string, len(parts))
	for i, part := range parts {
		want[i] = strings.ToLower(part)
	}
	want = withoutLastSlash(want)
	return !everyReading(path, func(got []string) bool { return !slices.Equal(got, want) })
}

// readBy returns the parts into which a server splits a path, by the name of the function that splits. It returns nil
// if the server refuses the path.
func readBy(t *testing.T, address, path string) (out map[string][]string) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
		path); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return nil // refused, or redirected to another path
	}
	if err := json.NewDecoder(answer.Body).Decode(&out); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return out
}

// goServer starts a server that answers with the path as net/http and its ServeMux read it.
func goServer(t *testing.T) string {
	answer := func(w http.ResponseWriter, kinds map[string][]string) {
		_ = json.NewEncoder(w).Encode(kinds) // a lost answer fails the test
	}
	mux := http.NewServeMux()
	const most = 8
	for n := range most {
		pattern := ""
		for i := range n {
			pattern += fmt.Sprintf("/{p%d}", i)
		}
		for _, end := range []string{"", "/{$}"} {
			if pattern+end == "" {
				continue
			}
			mux.HandleFunc(pattern+end, func(w http.ResponseWriter, r *http.Request) {
				parts := make([]string, n, n+1)
				for i := range parts {
					parts[i] = r.PathValue(fmt.Sprintf("p%d", i))
				}
				if end != "" {
					parts = append(parts, "")
				}
				answer(w, map[string][]string{"go ServeMux": parts, "go URL.Path": afterSlash(r.URL.Path)})
			})
		}
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern == "" || strings.Contains(r.URL.EscapedPath(), "//") {
			// ServeMux redirects these paths.
			answer(w, map[string][]string{"go URL.Path": afterSlash(r.URL.Path)})
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func nodeServer(t *testing.T) string   { return program(t, "node", "testdata/servers/paths.js") }
func pythonServer(t *testing.T) string { return program(t, "python3", "testdata/servers/paths.py") }

// program runs a server program and returns its address. The program prints its port, and ends when its standard input
// is closed.
func program(t *testing.T, name, file string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	cmd := exec.Command(path, file) //nolint:gosec // a program of the test
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var problems strings.Builder
	cmd.Stderr = &problems
	if err := cmd.Start(); err != nil {
		t.Skipf("%s cannot be run: %v", name, err)
	}
	t.Cleanup(func() {
		_ = in.Close() // the program ends
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
	})
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%s did not start: %v", name, err)
	}
	return net.JoinHostPort("127.0.0.1", strings.TrimSpace(port))
}
