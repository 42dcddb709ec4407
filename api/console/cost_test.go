package console

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	apihttp "github.com/quorate/quorate/api/http"
)

// wide is a Cluster of many nodes with large views.
type wide struct{ nodes int }

func (w wide) Members(context.Context) (out []Member) {
	for i := range w.nodes {
		name := "node-" + strconv.Itoa(i)
		v := &schema.NodeView{At: time.Now(), Status: schema.NodeStatus{Node: schema.NodeIdentity{ID: name}}}
		for range 50 {
			v.Warnings = append(v.Warnings, schema.LogRecord{Text: strings.Repeat("x", 1024)})
		}
		out = append(out, Member{MemberStatus: schema.MemberStatus{Node: name, Self: i == 0}, View: v})
	}
	return out
}

func (wide) TransferLeader(context.Context, string, uint64, string) (r schema.TransferResult, err error) {
	return r, err
}

func (wide) CompareReplicas(context.Context, string, uint64) (c schema.Comparison, err error) {
	return c, err
}

// heap returns the bytes of live objects.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // small
}

func TestConsole_WithoutPageHasNoGoroutineAndSmallBuffers(t *testing.T) {
	const most = 256 << 10
	before, goroutines := heap(), runtime.NumGoroutine()
	c, err := New(Config{Cluster: wide{1}, OpenAPI: apihttp.OpenAPI(), Port: "1", Logger: slog.New(slog.DiscardHandler),
		Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 * maxLogins {
		c.Login()
	}
	used := heap() - before
	t.Logf("%d bytes", used)
	if used > most {
		t.Errorf("the console uses %d bytes without a page, more than %d", used, most)
	}
	if n := runtime.NumGoroutine(); n != goroutines {
		t.Errorf("%d goroutines, %d before", n, goroutines)
	}
	c.Close()
}

func TestWatcher_ForgetsWhatItKnowsAfterTheLastPage(t *testing.T) {
	const most = 256 << 10
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher(wide{200}, time.Now)
		before := heap()
		for range 2 * keep {
			w.current(t.Context())
			<-time.After(pollEvery + pollTime)
		}
		samples := 0
		w.mu.Lock()
		for _, one := range w.past {
			samples += len(one)
		}
		w.mu.Unlock()
		if size := samples * 24; size > most {
			t.Errorf("the charts have %d bytes, more than %d", size, most)
		}
		<-time.After(keepTime)
		synctest.Wait()
		w.mu.Lock()
		if w.last != nil || len(w.past) != 0 {
			t.Error("the watcher has not forgotten what it knew")
		}
		w.mu.Unlock()
		if used := heap() - before; used > most {
			t.Errorf("%d bytes are left, more than %d", used, most)
		}
		runtime.KeepAlive(w)
	})
}

var unquoted = regexp.MustCompile(`<[^>]* [a-z-]+=['%]`)

func TestFormats_HaveAnArgumentForEachPlace(t *testing.T) {
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	calls := 0
	check := func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if name, ok := call.Fun.(*ast.Ident); !ok || name.Name != "h" || call.Ellipsis.IsValid() {
			return true
		}
		calls++
		format, ok := constant(call.Args[0])
		if !ok {
			t.Errorf("%s: the format is not a constant", files.Position(call.Pos()))
		}
		if places := strings.Count(format, "%"); places != len(call.Args)-1 {
			t.Errorf("%s: %d places and %d arguments", files.Position(call.Pos()), places, len(call.Args)-1)
		}
		if unquoted.MatchString(format) {
			t.Errorf("%s: an attribute without double quotes", files.Position(call.Pos()))
		}
		return true
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, check)
	}
	if calls < 50 {
		t.Errorf("only %d calls were found", calls)
	}
}

// constant returns the text of a constant of this package.
func constant(e ast.Expr) (string, bool) {
	switch x := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(x.Value)
		return s, err == nil
	case *ast.BinaryExpr:
		a, ok1 := constant(x.X)
		b, ok2 := constant(x.Y)
		return a + b, ok1 && ok2 && x.Op == token.ADD
	case *ast.Ident:
		return documentHead, x.Name == "documentHead"
	}
	return "", false
}

func TestHTML_EscapesTextAndAttributes(t *testing.T) {
	const evil = `"><script>'&`
	for _, got := range []html{esc(evil), text(evil), code(evil), hidden(evil, evil), label(evil, evil, evil, ""),
		choose(evil, evil, evil, []string{evil}), area(evil, evil, evil, ""), pair(evil, evil), badge("ok", evil),
		link(evil, evil), card(evil, evil, ""), grid(evil, evil, []html{row(esc(evil))}), failure(evil), dim(evil),
		figure(evil, evil, ""), chart(evil, []float32{1, 2}), scroll(evil, "")} {
		if strings.Contains(string(got), "<script") || strings.Contains(string(got), `""`) {
			t.Errorf("not escaped: %s", got)
		}
	}
	if got := fmt.Sprint(h(`<a title="%">%</a>`, esc(`"`), esc("<"))); got != `<a title="&#34;">&lt;</a>` {
		t.Errorf("got %s", got)
	}
}
