package demoworkflow

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/cmd/internal/launcher"
	"github.com/quorate/quorate/cmd/lab/internal/demokit"
	"github.com/quorate/quorate/cmd/lab/internal/labtest"
	"github.com/quorate/quorate/internal/testutil"
)

func TestCheck_FindsWrongBooks(t *testing.T) {
	// Orders "a" and "b" of one customer: a was completed, and b was canceled.
	orders := map[string]order{"a": {ID: "a", Customer: "c", Item: "lamp", Count: 2, Price: 30, To: "Berlin"},
		"b": {ID: "b", Customer: "c", Item: "lamp", Count: 1, Price: 10, To: moon}}
	var executed strings.Builder
	good := map[string]json.RawMessage{"stock-lamp": json.RawMessage("999998"), "credit-c": json.RawMessage("999970")}
	runs := func(id string, names ...string) (out []run) {
		for _, name := range names {
			r := run{Step: name, ID: id + "." + name, Answer: booked}
			executed.WriteString(r.ID + "\n")
			if name != "ship" {
				good[noteOf(id, name)] = json.RawMessage(demokit.Text(r))
			}
			out = append(out, r)
		}
		return out
	}
	done := runs("a", "reserve", "charge", "ship")
	undone := runs("b", "reserve", "charge", "ship", "refund", "release")
	executed.WriteString("cut short\n")
	for _, c := range []struct {
		name, want string
		a, b       outcome
		stored     map[string]json.RawMessage // instead of those of good
	}{
		{"right", "", outcome{true, done}, outcome{false, undone}, nil},
		{"canceled without reason", "a to Berlin", outcome{false, undone}, outcome{false, undone}, nil},
		{"undone in part", "b has the steps", outcome{true, done}, outcome{false, undone[:4]}, nil},
		{"a result counts twice", "has counted twice", outcome{true, done}, outcome{false, slices.Concat(done[:1],
			undone[1:])}, nil},
		{"a result of no execution", "never ran", outcome{true, slices.Concat([]run{{"reserve", "x", booked}},
			done[1:])}, outcome{false, undone}, nil},
		{"booked by another execution", "the note says", outcome{true, done}, outcome{false, undone},
			map[string]json.RawMessage{noteOf("a", "charge"): json.RawMessage(`{"step":"charge","id":"y"}`)}},
		{"booked twice", "credit-c is 999940", outcome{true, done}, outcome{false, undone},
			map[string]json.RawMessage{"credit-c": json.RawMessage("999940")}},
		{"completed and undone", "refund was booked: true", outcome{true, done}, outcome{false, undone},
			map[string]json.RawMessage{noteOf("a", "refund"): json.RawMessage("{}")}},
	} {
		stored := maps.Clone(good)
		maps.Copy(stored, c.stored)
		err := check(orders, map[string]outcome{"a": c.a, "b": c.b}, []byte(executed.String()), stored)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if err := check(orders, map[string]outcome{"a": {true, done}}, []byte(executed.String()), good); err == nil {
		t.Error("an order that has not ended is not found")
	}
}

func TestSaysExists_KnowsTheAnswer(t *testing.T) {
	body := func(code, message string) string { return `{"errorCode":"` + code + `","message":"` + message + `"}` }
	const exists = "error starting workflow 'order': an active workflow with ID 'order-1-1' already exists"
	for _, c := range []struct {
		err  error
		want bool
	}{
		{&launcher.Refused{Status: 500, Body: body("ERR_START_WORKFLOW", exists)}, true},
		{fmt.Errorf("start: %w", &launcher.Refused{Status: 500, Body: body("ERR_START_WORKFLOW", exists)}), true},
		{&launcher.Refused{Status: 400, Body: body("ERR_INSTANCE_ID_INVALID", "the id is not valid")}, false},
		{&launcher.Refused{Status: 404, Body: "not found"}, false},
		{&launcher.Refused{Status: 429, Body: body("ERR_TOO_MANY_REQUESTS", "busy")}, false},
		{&launcher.Refused{Status: 500, Body: body("ERR_START_WORKFLOW", "error starting workflow 'order': no leader")},
			false},
		{errors.New("the connection was cut"), false},
		{nil, false},
	} {
		if got := saysExists(c.err); got != c.want {
			t.Errorf("%v: %t, want %t", c.err, got, c.want)
		}
	}
}

// TestDemo_BooksBalance runs make demo-workflow from start to end.
func TestDemo_BooksBalance(t *testing.T) {
	if testing.Short() {
		t.Skip("starts real processes")
	}
	var out testutil.Output
	d := demo{out: launcher.NewLines(&out), binary: labtest.Build(t, "cmd/quorate"), rounds: 1,
		worker: []string{labtest.Build(t, "cmd/lab"), WorkerWord}}
	err := d.run(t.Context())
	if t.Log(out.String()); err != nil {
		t.Fatal(err)
	}
	if len(d.books.ended) == 0 || !strings.Contains(out.String(), "The books balance") {
		t.Errorf("%d orders have ended", len(d.books.ended))
	}
}
