package deploy_test

import (
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// call sends a request to the application web from outside.
func call(method, url, body string, want int) (string, error) {
	req, err := http.NewRequest(method, url, strings.NewReader(body)) //nolint:noctx // the client has a time-out
	if err != nil {
		return "", err
	}
	resp, err := (&http.Client{Timeout: 10 * time.Second}).Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != want {
		err = fmt.Errorf("%s, want %d: %s", resp.Status, want, text)
	}
	return string(text), err
}

// TestContainers_DemoSurvivesServerFailures starts the demo, places orders, disconnects a server,
// moves every server to a new container, and reads everything again.
func TestContainers_DemoSurvivesServerFailures(t *testing.T) {
	l := engine(t)
	l.build()
	l.lookInside(t)
	servers, _ := l.start()
	shop := l.url("web", "8080") + "/orders/"
	kept := map[string]string{}
	order := func(id string) {
		t.Helper()
		body := `{"id":"` + id + `"}`
		l.eventually("order "+id, patience, func() error { _, err := call("POST", shop+id, body, 204); return err })
		kept[id] = body
	}
	for i := range 20 {
		order(fmt.Sprint("first-", i))
	}
	l.cut("n1")
	for i := range 20 {
		order(fmt.Sprint("without-n1-", i))
	}
	l.plug("n1")
	l.eventually("n1 is back", patience, l.health("--placed", "n1"))

	for _, name := range servers { // each moves to a new container on its volume, as in an update
		l.down(name)
		order("while-" + name + "-is-away")
		l.up(name)
		order("after-" + name)
		l.eventually(name+" is back", patience, l.health("--placed", name))
	}
	for id, body := range kept {
		l.eventually("reading "+id, patience, func() error {
			if got, err := call("GET", shop+id, "", 200); err != nil || got != body {
				return fmt.Errorf("%q, want %q: %v", got, body, err)
			}
			return nil
		})
	}
}

// lookInside checks the content of the image that make builds, except the binary and folders.
func (l *lab) lookInside(t *testing.T) {
	l.must(append(append([]string{"create", "--name", l.name("look")}, l.labels()...), l.name("quorate"))...)
	file := filepath.Join(t.TempDir(), "image.tar")
	l.must("export", "-o", file, l.name("look"))
	out, err := exec.CommandContext(t.Context(), "tar", "-tf", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields(string(out)) {
		top, _, _ := strings.Cut(name, "/")
		if !slices.Contains([]string{"quorate", "etc", "var", "tmp", "dev", "proc", "sys", ".dockerenv"}, top) {
			t.Errorf("%s is in the image", name)
		}
	}
	if user := l.must("inspect", "-f", "{{.Config.User}}", l.name("look")); user != "65532:65532" {
		t.Errorf("it runs as %q", user)
	}
}
