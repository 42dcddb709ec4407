package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
)

func source(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// goFiles returns the text of all Go files of a folder, without tests.
func goFiles(t *testing.T, folder ...string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(append(folder, "*.go")...))
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") {
			text += source(t, file)
		}
	}
	return text
}

// TestCompatibility_ListsEveryPathMethodAndSection compares dapr-compatibility.md with the code.
func TestCompatibility_ListsEveryPathMethodAndSection(t *testing.T) {
	page := source(t, "dapr-compatibility.md")
	for _, m := range regexp.MustCompile(`path: "(/v1\.0/[^"]*)"`).FindAllStringSubmatch(
		goFiles(t, "..", "api", "http"), -1) {
		if !strings.Contains(page, "| `"+m[1]+"` | works |") {
			t.Errorf("docs/dapr-compatibility.md does not list the path %s as works: add a row", m[1])
		}
	}
	grpc := goFiles(t, "..", "api", "grpc")
	var methods []string
	for _, m := range runtimev1.Dapr_ServiceDesc.Methods {
		methods = append(methods, m.MethodName)
	}
	for _, m := range runtimev1.Dapr_ServiceDesc.Streams {
		methods = append(methods, m.StreamName)
	}
	for _, name := range methods {
		want := "refused"
		if strings.Contains(grpc, "Methods) "+name+"(") {
			want = "works"
		}
		if !strings.Contains(page, "| `"+name+"` | "+want+" |") {
			t.Errorf("docs/dapr-compatibility.md does not list the method %s as %s: add or change its row", name, want)
		}
	}
	code := source(t, "..", "component", "configuration.go")
	sections := regexp.MustCompile(`(?m)^\t\t"(\w+)": +(?:func\(n|p\.mtls|"|"?\w)|section\w+ += "(\w+)"`)
	found := 0
	for _, m := range sections.FindAllStringSubmatch(code, -1) {
		name := m[1] + m[2]
		if name == "apiVersion" || name == "spec" {
			continue
		}
		if found++; !regexp.MustCompile("`spec\\." + name + "[`.[]").MatchString(page) {
			t.Errorf("docs/dapr-compatibility.md does not list the section spec.%s", name)
		}
	}
	if found < 10 {
		t.Errorf("found only %d sections in the code", found)
	}
}
