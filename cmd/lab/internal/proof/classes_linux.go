package proof

import (
	"time"

	"github.com/quorate/quorate/cmd/lab/internal/faulttest"
	"github.com/quorate/quorate/cmd/lab/internal/tuned"
)

// class is a class of faults.
type class struct {
	ID, Name, How string
	faults        []faulttest.Fault
	skipped       string // why it is not run here, for the report
}

// classes returns all classes. The names F1 to F22 are those of docs/reliability.md.
func classes() []class {
	const ms = time.Millisecond
	f := func(faults ...faulttest.Fault) []faulttest.Fault { return faults }
	leaderOrNot := func(make func(leader bool) faulttest.Fault) []faulttest.Fault { return f(make(true), make(false)) }
	all := []class{
		{"F1", "kill -9 of one, of all, of a sidecar", "SIGKILL",
			append(leaderOrNot(faulttest.Kill), faulttest.KillAll(), faulttest.KillSidecar()), ""},
		{"F2", "pause", "SIGSTOP, then SIGCONT, with requests in the sockets", leaderOrNot(faulttest.Pause), ""},
		{"F3", "partitions of every shape", "links cut in the switch, in one direction or both",
			f(faulttest.Isolate(), faulttest.Deafen(), faulttest.Mute(), faulttest.Bridge(), faulttest.IsolateAll(),
				faulttest.OneWay(), faulttest.Aside()), ""},
		{"F4", "delay, reordering, loss, half-open connections", "packets delayed or dropped in the switch",
			f(faulttest.Bad(faulttest.Link{Delay: 20 * ms, Jitter: 60 * ms}), faulttest.Bad(faulttest.Link{Loss: 0.2}),
				faulttest.Together(faulttest.Bad(faulttest.Link{Loss: 0.1, Jitter: 20 * ms}), faulttest.Kill(true))),
			""},
		{"F5", "full disk", "fallocate until ENOSPC", leaderOrNot(faulttest.Full), ""},
		{"F6", "slow disk", "FIFREEZE, on and off",
			f(faulttest.Slow(true, 400*ms), faulttest.Slow(false, time.Second), faulttest.SlowAll(40*ms)), ""},
		{"F7", "failing disk", "EXT4_IOC_SHUTDOWN: every write is an error; the process must end itself",
			leaderOrNot(faulttest.Fails), ""},
		{"F8", "un-synced writes lost, of one and of all", "EXT4_IOC_SHUTDOWN without a flush, and SIGKILL",
			append(leaderOrNot(faulttest.Power), faulttest.PowerAll()), ""},
		{"F9", "flipped, zeroed, torn files", "bytes changed in log, vote, manifest, database (which is the " +
			"snapshot) and identity of a stopped server", damage(), ""},
		{"F10", "clocks", "an overlay of package time shifts the wall clock of a running process, not its " +
			"monotonic one",
			f(faulttest.Clock(false, 3600, false), faulttest.Clock(true, -3600, false),
				faulttest.Clock(true, 3600, true), faulttest.Late(true, 3600), faulttest.Late(false, 3600)), ""},
		{"F11", "membership changes", "servers added, removed, leaving, replaced",
			append(leaderOrNot(faulttest.Exchange), faulttest.Leave(), faulttest.Replace()), ""},
		{"F12", "snapshots installed under load", "small bounds, a slow wire, kill -9 in the middle",
			f(faulttest.Install()), ""},
		{"F13", "rolling restart", "SIGTERM, one after the other",
			append(leaderOrNot(faulttest.Restart), faulttest.Rolling()), ""},
		{"F14", "leadership storm", "transfer-leader all the time", f(faulttest.Storm()), ""},
		{"F15", "backup under load", "backup save, and a look into it", f(faulttest.Backup()), ""},
		{"F16", "death at a step of own disk work", "SIGKILL to itself at the n-th step",
			leaderOrNot(faulttest.Crash), ""},
		{"F17", "wiped, cloned and doubled servers",
			"data removed; data copied and started elsewhere; an id used twice",
			append(leaderOrNot(faulttest.Wipe), faulttest.Clone(), faulttest.Twin()), ""},
		{"F18", "mass restart", "SIGTERM to all at once", f(faulttest.RestartAll()), ""},
		{"F19", "hot keys and large values", "16 clients count in one key; values of 4 MB; 60 of 64 KiB at once",
			f(faulttest.Hot(), faulttest.Heavy()), ""},
		{"F20", "exhaustion", "RLIMIT_NOFILE, RLIMIT_AS of the running process; GOMAXPROCS=1",
			append(append(leaderOrNot(faulttest.Files), leaderOrNot(faulttest.Memory)...),
				faulttest.OneProcessor(true)), ""},
		{"F21", "hung disk", "FIFREEZE until the process has ended itself, and for some seconds",
			append(leaderOrNot(faulttest.Stall), faulttest.Hung()), ""},
		{"F22", "a deposed leader whose tail is refused, under load",
			"the leader cut off until the others have taken snapshots", f(faulttest.Contradict()), ""},
	}
	if !tuned.ClockTurns {
		for i := range all {
			if all[i].ID == "F10" {
				all[i].faults, all[i].skipped = nil,
					"this build cannot turn its wall clock: make prove builds one that can"
			}
		}
	}
	return all
}

// damage returns every way to damage every part.
func damage() (out []faulttest.Fault) {
	for _, p := range []faulttest.Part{faulttest.LogPart, faulttest.DatabasePart, faulttest.VotePart,
		faulttest.ManifestPart, faulttest.IdentityPart} {
		for _, how := range faulttest.Damages() {
			out = append(out, faulttest.Damage(p, how))
		}
	}
	return out
}

// notRun returns the classes of faults and the checks that a campaign omits, or runs only in part. Each element
// consists of a name and a reason.
func notRun() [][2]string {
	return [][2]string{
		{"F9, latent sector errors of a running server",
			"the kernel here has no device mapper; raftfsm and raftfsm/kv read damaged files through their own " +
				"layers in tests"},
		{"F10, a server started with a clock that is ahead",
			"keys may then expire early: the promise assumes a right clock at that moment"},
		{"F13, two versions at once", "there is no older release"},
		{"F15, restore of a backup", "it replaces the data of the checks; raftfsm " +
			"TestRestore_ConcurrentWritesAreBeforeOrAfter does it under load"},
		{"F17, two servers exchange their addresses", "node tests restart servers at other addresses"},
		{"F18, exchange of tokens, a thousand members", "the nodes here use no token; node and membership tests"},
		{"F20, memory of a control group", "control groups of version 1 may not be written everywhere; RLIMIT_AS " +
			"takes their place"},
		{"C8, equal logs", "logs may differ behind snapshots; the state at one index is compared in their place, " +
			"raftfsm/group compares logs"},
	}
}
