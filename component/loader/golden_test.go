package loader_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/internal/fault"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestOpen_RefusedFileNamesProblemAndPlace(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "bad", "*.yaml"))
	if err != nil || len(files) < 25 {
		t.Fatalf("found %d files, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			r := newRig(filepath.ToSlash(file))
			set, err := loader.Open(t.Context(), r.Options)
			if err == nil {
				set.Close() //nolint:errcheck // the test has failed
				t.Fatal("the file was accepted")
			}
			got := string(fault.CodeOf(err)) + ": " + fault.Text(err) + "\n"
			golden := strings.TrimSuffix(file, ".yaml") + ".golden"
			if *update {
				write(t, golden, got)
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if !strings.Contains(got, filepath.ToSlash(file)+":") {
				t.Errorf("the error does not name file and line: %s", got)
			}
			if strings.Contains(got, "hunter2") || strings.Contains(r.logs.String(), "hunter2") {
				t.Error("a secret is shown")
			}
		})
	}
}
