// Package peercalls makes the calls of a node to the other servers of its cluster. It owns the names of these calls and
// the format of their messages.
//
// A LeaderClient calls the leaders of groups. It combines writes that arrive at the same time into one call. A
// RouteTable chooses the servers that a node without data calls. Package raftfsm answers the calls.
package peercalls
