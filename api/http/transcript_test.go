package http_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/http/transcript"
)

var update = flag.Bool("update", false, "write the answers that came into testdata")

// Every row of the API's tables has a step in one of the transcripts. Those below
// testdata/contract hold for any store; those below testdata/face need this fixture.
func TestTranscriptsHold(t *testing.T) {
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
				if adapt := adaptations()[name]; adapt != nil {
					adapt(f)
				}
				replay(t, f.serve(t), file)
			})
		}
	}
}

// adaptations are what single transcripts need of the node.
func adaptations() map[string]func(*fixture) {
	return map[string]func(*fixture){
		"token":   func(f *fixture) { f.config.Tokens = []string{"old token", "new token"} },
		"origins": func(f *fixture) { f.config.AllowedOrigins = []string{"https://app.example", "http://localhost:8080"} },
		"origins-any": func(f *fixture) {
			f.config.AllowedOrigins = []string{"*"}
			f.config.Tokens = []string{"token"}
		},
		"any-host":  func(f *fixture) { f.config.AnyHost = true },
		"body-size": func(f *fixture) { f.config.MaxBodySize = 64 },
		"no-stores": func(f *fixture) { f.stores.list = nil },
		"starting":  func(f *fixture) { f.stores.list, f.stores.loaded = nil, false },
		"no-actor-store": func(f *fixture) {
			for _, inst := range f.stores.list {
				inst.ActorStore = false
			}
		},
		"not-ready": func(f *fixture) {
			f.health.starting = []api.Reason{{Name: "component orders", Text: "connection refused"}, {Name: "application", Text: "port 8080 is not open"}}
			f.health.outbound = f.health.starting[:1]
			f.health.checks = []api.Check{{Kind: "store", Name: "orders", Reason: "not open"}}
		},
		"degraded": func(f *fixture) {
			f.health.checks = []api.Check{
				{Kind: "store", Name: "orders", Reads: true, Writes: true},
				{Kind: "group", Name: "0", Reads: true, Reason: "1 of 3 voters answer"},
			}
		},
		"timeouts": func(f *fixture) { f.config.RequestTimeout = 50 * time.Millisecond },
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
