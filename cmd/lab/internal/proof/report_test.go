package proof

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func sample() *Result {
	r := &recorder{begun: time.Now()}
	r.note(r.begun, 5*time.Millisecond, true, false, true)
	r.note(r.begun, 2*time.Second, false, true, false)
	return &Result{
		Seed: 42, Version: "v9", Again: "SEED=42 make prove", Took: 10 * time.Second, Elections: 1,
		Faults: map[string]int{"F1": 1},
		Classes: []ClassSummary{{ID: "F1", Name: "kill", Times: 1},
			{ID: "F10", Name: "clocks", Skipped: "no clock"}},
		Played: []Played{{Number: 1, Class: "F1", Name: "kill -9 of all", Begin: time.Second,
			Healed: 2 * time.Second, Healthy: 3 * time.Second, Notes: []string{"<n1>"}}},
		Changes: []Election{{At: 2 * time.Second, Term: 3, Leader: "n2"}},
		Violations: []Violation{{Check: "C6", Step: 1, At: 3 * time.Second, Text: "3 writes are lost",
			History: []string{"<script>alert(1)</script>"}}},
		Stalls:   []Stall{{time.Second, time.Second}},
		Timeline: r.seconds(), Resumed: map[string]Times{"F1": summed([]time.Duration{time.Second})},
	}
}

func TestReport_IsOnePageThatShowsTheFaults(t *testing.T) {
	var page bytes.Buffer
	if err := sample().WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	text := page.String()
	for _, want := range []string{"1 violations", "3 writes are lost", "SEED=42 make prove", "&lt;script&gt;", "<svg",
		"<polyline", "kill -9 of all", "not run: no clock", "n2 leads group 0 in term 3"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing", want)
		}
	}
	for _, foreign := range []string{"<script", "src=", "href=", "ZgotmplZ", "NaN"} {
		if strings.Contains(text, foreign) {
			t.Errorf("the page contains %q", foreign)
		}
	}
}

func TestReport_TotalsAreJSON(t *testing.T) {
	var b bytes.Buffer
	if err := sample().WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var back Result
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if back.Seed != 42 || len(back.Violations) != 1 || back.Faults["F1"] != 1 {
		t.Errorf("%+v", back)
	}
}

func TestReport_CountsResultsPerSecond(t *testing.T) {
	r := &recorder{begun: time.Now()}
	r.note(r.begun, time.Millisecond, true, false, true)
	r.note(r.begun, 3*time.Millisecond, true, false, true)
	r.note(r.begun, 1500*time.Millisecond, false, false, false)
	r.note(r.begun, 1500*time.Millisecond, false, true, false)
	got := r.seconds()
	if len(got) != 2 || got[0].Done != 2 || got[0].Median != 3*time.Millisecond || got[1].Refused != 1 ||
		got[1].Unknown != 1 {
		t.Errorf("%+v", got)
	}
	if r.Strong != 2 || r.Other != 2 {
		t.Errorf("%d strong and %d other requests", r.Strong, r.Other)
	}
}
