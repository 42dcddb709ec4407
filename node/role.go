package node

import "strings"

// sidecar reports whether the node stores no data and routes to servers.
func (c Cluster) sidecar() bool { return c.Role == RoleSidecar }

// joining reports whether the node joins an existing cluster. A node that does not join and has a new data directory
// forms a cluster of one, which other nodes may join.
func (c Cluster) joining() bool { return len(c.Join) > 0 }

// Local reports whether this node joins no other nodes and only programs on this machine can reach it. Its API, its
// metrics and its ports for other nodes then listen on loopback only.
func (c Config) Local() bool {
	return !c.Cluster.joining() && !exposed(append([]string{c.Cluster.Bind, c.Metrics.Listen}, c.API.Listen...))
}

// validateRole refuses settings that contradict the role sidecar.
func (c Cluster) validateRole(p *problems) {
	if !c.sidecar() {
		return
	}
	p.check(c.joining(), "--role", c.Role, "a sidecar holds no data and needs servers: name them with --join")
	p.check(c.BootstrapExpect == 0, "--bootstrap-expect", c.BootstrapExpect,
		"leave it out with --role sidecar: only servers form a cluster")
}

// defaultID returns the node id for a new data directory if the user chose none. For a node that joins others, it is
// the result of nodeName for its host name. Otherwise it is "", and the node gets a random id.
func (c Cluster) defaultID() string {
	if !c.joining() {
		return ""
	}
	return nodeName(c.Host)
}

// nodeName makes a node id from a host name: the first label, without the characters that an id must not contain. It
// returns "" if the result is not a valid id.
func nodeName(host string) string {
	host, _, _ = strings.Cut(strings.ToLower(host), ".")
	var b strings.Builder
	for _, r := range host {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || b.Len() > 0 && strings.ContainsRune("-_", r) {
			b.WriteRune(r)
		}
	}
	name := strings.TrimRight(b.String(), "-_")
	if !isName(name) || name == "localhost" || name == sharedDir {
		return ""
	}
	return name
}
