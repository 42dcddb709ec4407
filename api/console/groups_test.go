package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/api/console"
	"github.com/quorate/quorate/internal/testutil"
)

// show polls a page until it has a text.
func (f *fixture) show(t *testing.T, path, want string) (body string) {
	t.Helper()
	testutil.Eventually(t, func() error {
		if _, body, _ = f.get(t, path); !strings.Contains(body, want) {
			return fmt.Errorf("%s does not show %q: %s", path, want, body)
		}
		return nil
	})
	return body
}

func TestConsole_ComparesReplicasWithoutPermissionToWrite(t *testing.T) {
	f := open(t, false)
	f.cluster.comparison = schema.Comparison{Index: 4711, Majority: "aa", Replicas: []schema.ReplicaDigest{
		{Node: "a", Voter: true, Digest: "aa"}, {Node: "b", Voter: true, Digest: "aa"}}}
	if status, _ := f.post(t, "/groups/0/compare", url.Values{"csrf": {"x"}}); status != http.StatusForbidden {
		t.Errorf("without the token of the session: %d", status)
	}
	if f.cluster.compared != "" {
		t.Error("a refused request was executed")
	}
	f.post(t, "/groups/0/compare", url.Values{})
	f.show(t, "/groups/0", "All servers have the same state.")
	if body := f.show(t, "/groups/0", "4711"); f.cluster.compared != "a" || !strings.Contains(body, "Run comparison") {
		t.Errorf("compared at %q: %s", f.cluster.compared, body)
	}
	if !strings.Contains(f.log.String(), `action="compare replicas"`) {
		t.Errorf("the audit log has no comparison:\n%s", f.log)
	}
	for want, c := range map[string]schema.Comparison{
		"The states differ.": {Majority: "aa", Replicas: []schema.ReplicaDigest{{Node: "a", Digest: "aa"},
			{Node: "b", Digest: "bb"}}},
		"The servers that answered have the same state.": {Majority: "aa", Replicas: []schema.ReplicaDigest{
			{Node: "a", Digest: "aa"}, {Node: "b", Reason: "it is away"}}},
		"No state has a majority of the voters.": {Replicas: []schema.ReplicaDigest{{Node: "a", Digest: "aa"},
			{Node: "b", Digest: "bb"}}},
		"Too few servers have answered.": {Replicas: []schema.ReplicaDigest{{Node: "a", Digest: "aa"},
			{Node: "b", Reason: "it is away"}, {Node: "c", Reason: "it is away"}}},
	} {
		f.cluster.comparison = c
		f.post(t, "/groups/0/compare", url.Values{})
		f.show(t, "/groups/0", want)
	}
	f.cluster.failure = http.ErrHandlerTimeout
	f.post(t, "/groups/0/compare", url.Values{})
	f.show(t, "/groups/0", "The replicas could not be compared")
	if status, _ := f.post(t, "/groups/7/compare", url.Values{}); status != http.StatusNotFound {
		t.Errorf("an unknown group: %d", status)
	}
}

func TestConsole_CountsReachableVoters(t *testing.T) {
	for name, c := range map[string]struct{ state, voters, badge string }{
		"all":                {"alive", "3 of 3 reachable", "reads and writes<"},
		"one dead":           {"failed", "2 of 3 reachable", "reads and writes; one more failure stops writes<"},
		"state not reported": {"", "3 of 3 reachable", "reads and writes<"},
	} {
		t.Run(name, func(t *testing.T) {
			a := member("a", true)
			a.View.Status.Groups[0].Servers = []schema.ServerStatus{{Node: "a", Voter: true, State: "alive"},
				{Node: "b", Voter: true, State: "alive"}, {Node: "c", Voter: true, State: c.state},
				{Node: "d", State: "failed"}}
			for _, path := range []string{"/", "/groups"} {
				_, body, _ := openOn(t, false, []console.Member{a}).get(t, path)
				if !strings.Contains(body, c.voters) || !strings.Contains(body, c.badge) {
					t.Errorf("%s does not show %q and %q: %s", path, c.voters, c.badge, body)
				}
			}
		})
	}
}

func TestConsole_MergesLeadersThatNodesRemember(t *testing.T) {
	a, b := member("a", true), member("b", false)
	at := func(minute int) time.Time { return time.Date(2031, 2, 3, 4, minute, 0, 0, time.UTC) }
	a.View.Leaders = []schema.LeaderSeen{{Term: 1, Leader: "a", At: at(1)}, {Term: 3, Leader: "c", At: at(9)},
		{Group: 1, Term: 8, Leader: "other", At: at(8)}}
	b.View.Leaders = []schema.LeaderSeen{{Term: 2, Leader: "b", At: at(5)}, {Term: 3, Leader: "c", At: at(7)}}
	_, body, _ := openOn(t, false, []console.Member{a, b}).get(t, "/groups/0")
	body = body[strings.Index(body, "Last leaders"):]
	order := regexp.MustCompile(`04:0\d:00`).FindAllString(body, -1)
	if want := []string{"04:07:00", "04:05:00", "04:01:00"}; !slices.Equal(order, want) {
		t.Errorf("leaders at %q, not %q", order, want)
	}
	if strings.Contains(body, "other") {
		t.Error("the page shows a leader of another group")
	}
}

func TestConsole_ShowsRunsOfJobs(t *testing.T) {
	a, b := member("a", true), member("b", false)
	now := time.Now()
	a.View.Runs = []schema.JobRun{{App: "shop", Name: "nightly", Node: "b", At: now, Tick: 3, Attempt: 2,
		Outcome: "failed", Error: "<b>status 500"}}
	b.View.Runs = []schema.JobRun{{App: "shop", Name: "hourly", Node: "a", At: now.Add(-time.Hour), Tick: 1, Attempt: 1,
		Outcome: "done"}}
	f := openOn(t, false, []console.Member{a, b})
	_, body, _ := f.get(t, "/jobs")
	body = body[strings.Index(body, "Last runs"):]
	if strings.Index(body, "nightly") > strings.Index(body, "hourly") || !strings.Contains(body, "hourly") ||
		strings.Contains(body, "<b>") || !strings.Contains(body, "status 500") {
		t.Errorf("runs: %s", body)
	}
	if _, body, _ = f.get(t, "/jobs?name=night"); strings.Contains(body, "hourly") {
		t.Errorf("the prefix is ignored: %s", body)
	}
}

func TestConsole_ShowsAlertsOfNodes(t *testing.T) {
	a := member("a", true)
	a.View.At = time.Now().Add(-2 * time.Second)
	a.View.Alerts = []schema.NodeAlert{{Name: "QuorateStateInDoubt", About: "group 3", Text: "differs", Fails: true},
		{Name: "QuorateStrangers", Text: "refused", Grows: true, Count: 4}}
	f := openOn(t, false, []console.Member{a})
	_, body, _ := f.get(t, "/")
	if !strings.Contains(body, "group 3: differs") || strings.Contains(body, "QuorateStrangers") {
		t.Errorf("an alert of a counter fires at once, or that of a gauge does not: %s", body)
	}
	next := member("a", true)
	next.View.Alerts = []schema.NodeAlert{{Name: "QuorateStrangers", Text: "refused", Grows: true, Count: 5}}
	next.View.Figures.Backup = schema.Backups{Failing: true}
	next.View.Figures.Calls[0].Count, next.View.Figures.Calls[0].Errors = 20, 9
	next.View.Figures.Stores = []schema.NamedCount{{Name: "orders", Part: "get", Value: 9}}
	next.View.Figures.StoreErrors = []schema.NamedCount{{Name: "orders", Value: 6}}
	f.cluster.set([]console.Member{next})
	body = f.show(t, "/", "QuorateStrangers")
	for _, want := range []string{"QuorateBackupLate", "QuorateInvokeErrors", "QuorateStateErrors"} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in %s", want, body)
		}
	}
}

// The console names each alert of deploy/prometheus, and no other.
func TestConsole_KnowsTheAlertsOfPrometheus(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile(filepath.FromSlash(path))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	var want, got []string
	rules := read("../../deploy/prometheus/alerts.yml")
	for _, m := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(rules, -1) {
		want = append(want, m[1])
	}
	source := read("health.go") + read("../../node/overview/alerts.go")
	got = regexp.MustCompile(`Quorate[A-Z]\w+`).FindAllString(source, -1)
	slices.Sort(want)
	slices.Sort(got)
	if got = slices.Compact(got); !slices.Equal(got, want) {
		t.Errorf("the console knows %q, the rules are %q", got, want)
	}
}
