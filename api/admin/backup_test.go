package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

func (f adminFunc) SaveBackup(context.Context, io.Writer) error {
	_, err := f()
	return err
}

func (f adminFunc) RestoreBackup(context.Context, io.Reader) (schema.RestoreResult, error) {
	_, err := f()
	return schema.RestoreResult{}, err
}

// saver is a Node whose backup has some bytes. The backup may fail before or after them.
type saver struct {
	adminFunc
	backup string
	err    error
	got    []byte
}

func (s *saver) SaveBackup(_ context.Context, w io.Writer) error {
	if _, err := io.WriteString(w, s.backup); s.backup != "" && err != nil {
		return err
	}
	return s.err
}

func (s *saver) RestoreBackup(_ context.Context, r io.Reader) (schema.RestoreResult, error) {
	if s.err != nil {
		return schema.RestoreResult{}, s.err
	}
	var err error
	s.got, err = io.ReadAll(r)
	return schema.RestoreResult{Keys: 7, Groups: 1, ClusterID: "c1"}, err
}

func adminServer(t *testing.T, a admin.Node) *httptest.Server {
	s := httptest.NewServer(admin.NewHandler(a, slog.New(slog.DiscardHandler)))
	t.Cleanup(s.Close)
	return s
}

func TestBackup_IsStreamedAndReportsLateFailure(t *testing.T) {
	unavailable := &fault.Error{Code: fault.Unavailable, Op: "test", Msg: "no quorum", Hint: "wait"}
	for name, c := range map[string]struct {
		node   saver
		status int
		kind   string
	}{
		"whole":          {saver{backup: "the backup"}, http.StatusOK, admin.BackupType},
		"fails at once":  {saver{err: unavailable}, http.StatusServiceUnavailable, "application/json"},
		"fails half way": {saver{backup: "the back", err: unavailable}, http.StatusOK, admin.BackupType},
		"fails after 1MB": {saver{backup: strings.Repeat("x", 1<<20), err: unavailable}, http.StatusOK,
			admin.BackupType},
	} {
		resp, err := http.Get(adminServer(t, &c.node).URL + admin.BackupPath)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != c.status || resp.Header.Get("Content-Type") != c.kind {
			t.Errorf("%s: %d %s %v", name, resp.StatusCode, resp.Header.Get("Content-Type"), err)
		}
		switch trailer := resp.Trailer.Get(admin.ErrorTrailer); {
		case c.status != http.StatusOK:
			if err := fault.Unmarshal(body); !fault.Is(err, fault.Unavailable) {
				t.Errorf("%s: %s", name, body)
			}
		case string(body) != c.node.backup:
			t.Errorf("%s: %d bytes came", name, len(body))
		case (c.node.err != nil) != (trailer != ""):
			t.Errorf("%s: trailer %q", name, trailer)
		case c.node.err != nil:
			if err := fault.Unmarshal([]byte(trailer)); fault.HintOf(err) != "wait" {
				t.Errorf("%s: trailer %q", name, trailer)
			}
		}
	}
}

func TestRestore_ReadsWholeBodyThenAnswers(t *testing.T) {
	s := &saver{}
	body := bytes.Repeat([]byte("backup"), 1<<20)
	resp, err := http.Post(adminServer(t, s).URL+admin.BackupPath, admin.BackupType, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var r schema.RestoreResult
	if err := json.NewDecoder(resp.Body).Decode(&r); err != nil || r.Keys != 7 || !bytes.Equal(s.got, body) {
		t.Errorf("%+v %v, %d bytes", r, err, len(s.got))
	}
}

// A client that is still sending megabytes gets the refusal.
func TestRestore_RefusalIsAnswered(t *testing.T) {
	s := adminServer(t, &saver{err: fault.New(fault.Invalid, "test", "the backup has 3 partitions")})
	resp, err := http.Post(s.URL+admin.BackupPath, admin.BackupType, bytes.NewReader(make([]byte, 20<<20)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), "3 partitions") {
		t.Errorf("%d %s %v", resp.StatusCode, text, err)
	}
}

func TestRestore_ReportsTruncatedBody(t *testing.T) {
	s := &saver{}
	w := httptest.NewRecorder()
	body := io.MultiReader(strings.NewReader("half"), broken{})
	admin.NewHandler(s, slog.New(slog.DiscardHandler)).ServeHTTP(w,
		httptest.NewRequest(http.MethodPost, admin.BackupPath, body))
	if err := fault.Unmarshal(w.Body.Bytes()); !fault.Is(err, fault.Unavailable) ||
		!strings.Contains(fault.Text(err), "was not sent to its end") {
		t.Errorf("%v", err)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("cut") }
