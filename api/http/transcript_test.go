package http_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/api/apitest"
	"github.com/quorate/quorate/api/http/transcript"
)

var update = flag.Bool("update", false, "write the answers that came into testdata")

// Transcripts in testdata/contract apply to any store. Transcripts in testdata/face need this fixture.
func TestTranscripts_Match(t *testing.T) {
	for _, dir := range []string{"contract", "face"} {
		files, err := filepath.Glob(filepath.Join("testdata", dir, "*.txt"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no transcripts in %s: %v", dir, err)
		}
		for _, file := range files {
			name := strings.TrimSuffix(filepath.Base(file), ".txt")
			t.Run(dir+"/"+name, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				f.Adapt(name)
				f.refit()
				if adapt := adaptations()[name]; adapt != nil {
					adapt(f)
				}
				replay(t, f.serve(t), file)
			})
		}
	}
}

// adaptations returns the changes to the configuration of the Face that some transcripts need, by the name of the
// transcript. World.Adapt makes all other changes.
func adaptations() map[string]func(*fixture) {
	return map[string]func(*fixture){
		"origins": func(f *fixture) {
			f.config.AllowedOrigins = []string{"https://app.example", "http://localhost:8080"}
		},
		"origins-any": func(f *fixture) {
			f.config.AllowedOrigins = []string{"*"}
			f.config.Tokens = apitest.Tokens("token")
		},
		"origins-token": func(f *fixture) { f.config.Tokens = apitest.Tokens("token") },
		"any-host":      func(f *fixture) { f.config.AnyHost = true },
	}
}

func replay(t *testing.T, base, file string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := transcript.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	client, err := transcript.HTTP(base)
	if err != nil {
		t.Fatal(err)
	}
	got, err := want.Replay(t.Context(), client, transcript.Options{OmitWriteETag: strings.Contains(file, "contract")})
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, got.Format(), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(want.Format()), string(got.Format())); diff != "" {
		t.Errorf("the answers differ from the transcript (-want +got):\n%s", diff)
	}
}
