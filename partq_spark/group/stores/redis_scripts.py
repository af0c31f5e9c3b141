"""The scripts that run inside Redis, one for each verb, so that each call is one round trip and happens whole or not
at all. Lua only, and what they have in common; `redis` calls them.

Keys of a group, all with the prefix `partq:{store id/namespace/queue/group}:` (the braces keep them on one cluster
slot):

- `state`, a hash: `t` token, `b` body, `m` when it was written, in milliseconds by Redis' clock;
- `flows`, a hash: a flow's name → its record without deliveries; name, space, partition → "epoch delivered
  acknowledged" *; name, space → the flow's partitions, with spaces between *, so that one flow is read without the
  others; name, space, `note` → what the flow says to people;
- `beats`, a hash: a flow's name → "instance count time bound sequence" *, bound being 1 or 0;
- `version`: a random token that changes with every change of a record;
- `leader`, a hash: `t` token, `n` beat, `b` body, `m` time;
- `ownership`, a hash: partition → "version time epoch flow instance" *, the last two "-" where nobody has it.

Lines with a * end in a space and a checksum (`sealing`), which is made and looked at here too; state, record and lease
begin with theirs. Tokens, times and notes have none: they decide nothing but whether something is read again.

Channels: `news` for coordinators, `changed` for flows. A script's first write is refused before anything is written
if Redis has no memory left or is a replica. Numbers are formatted with %.0f, or Lua would write 1.7e+12.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

RIGHTS: Final = (
    "~partq:* &partq:*:news &partq:*:changed +eval +evalsha +info +ping +select +time +get +set +del +hget +hset +hdel"
    " +hexists +hkeys +hgetall +publish +subscribe +psubscribe"
)
"""All that a user needs. Redis compares the pattern of a subscription with the rights letter by letter."""


REBORN: Final = "PARTQREBORN"
"""How the error begins with which a script refuses to do anything for who knows another life of the server."""

# Every script begins with it: a server that was a replica for a moment has a new replication id, also where no
# connection broke, and perhaps an old copy of everything. It is looked at together with what the script does, so that
# nothing comes in between. ARGV begins with the id that the caller knows; empty: the server has none.
_SAME_LIFE: Final = (
    """
local known = table.remove(ARGV, 1)
if known ~= '' and not string.find(redis.call('INFO', 'replication'), 'master_replid:' .. known, 1, true) then
  return redis.error_reply('"""
    + REBORN
    + """ the replication id is another one')
end
"""
)


@dataclass(frozen=True, slots=True)
class Script:
    """A script, known to the server by its hash once it has run there. Its first argument is the replication id."""

    body: str
    text: str = field(init=False)
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _SAME_LIFE + self.body)
        object.__setattr__(self, "sha", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())


_NOW: Final = """
local function now()
  local time = redis.call('TIME')
  return string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
end
"""

# A line that decides, with its checksum; a damaged one ends the script before it has written anything.
_SEALED: Final = """
local function sealed(name, text)
  return text .. ' ' .. string.sub(redis.sha1hex(name .. ' ' .. text), 1, 16)
end
local function opened(key, name, line)
  local text = string.match(line, '^(.*) %x+$')
  if not text or sealed(name, text) ~= line then
    error('the checksum of field ' .. name .. ' of key ' .. key .. ' does not match')
  end
  return text
end
"""

# `moved` moves the heartbeat of KEYS[1]: 0 where the flow ARGV[1] is not bound to the instance ARGV[2], 1 when it is
# done. A `sequence` below the last one belongs to a call that its caller has given up: it was held up on its way, and
# would undo what was reported since (3, nothing is done).
_MOVED: Final = (
    _NOW
    + _SEALED
    + """
local function moved(sequence)
  local beat = redis.call('HGET', KEYS[1], ARGV[1])
  if not beat then return 0 end
  local instance, count, bound, last =
    string.match(opened(KEYS[1], ARGV[1], beat), '^(%S+) (%d+) %d+ (%d) (%d+)$')
  if instance ~= ARGV[2] or bound ~= '1' or redis.call('HEXISTS', KEYS[2], ARGV[1]) == 0 then return 0 end
  if sequence and tonumber(sequence) < tonumber(last) then return 3 end
  redis.call('HSET', KEYS[1], ARGV[1], sealed(ARGV[1], table.concat(
    {instance, string.format('%.0f', count + 1), now(), '1', sequence or last}, ' ')))
  return 1
end
"""
)

_STORE: Final = """
local function store(first)
  local prefix, new = ARGV[1] .. ' ', {}
  for at = first, #ARGV, 2 do
    if redis.call('HSET', KEYS[2], prefix .. ARGV[at], ARGV[at + 1]) == 1 then new[#new + 1] = ARGV[at] end
  end
  if #new == 0 then return end
  local before = redis.call('HGET', KEYS[2], prefix)
  if before then table.insert(new, 1, opened(KEYS[2], prefix, before)) end
  redis.call('HSET', KEYS[2], prefix, sealed(prefix, table.concat(new, ' ')))
end
"""

_FORGET: Final = """
local function forget()
  local prefix = ARGV[1] .. ' '
  for _, name in ipairs(redis.call('HKEYS', KEYS[2])) do
    if name == ARGV[1] or string.sub(name, 1, #prefix) == prefix then redis.call('HDEL', KEYS[2], name) end
  end
end
"""

# --- the state: KEYS state --------------------------------------------------------------------------------------------

# ARGV known token. Nothing; 1: unchanged; token, body, time, now.
READ_STATE: Final = (
    _NOW
    + """
local token = redis.call('HGET', KEYS[1], 't')
if not token then return false end
if token == ARGV[1] then return 1 end
return {token, redis.call('HGET', KEYS[1], 'b'), redis.call('HGET', KEYS[1], 'm'), now()}
"""
)

# ARGV expected token, token, body, channel for flows. 1: done.
SWAP_STATE: Final = (
    _NOW
    + """
if (redis.call('HGET', KEYS[1], 't') or '') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 't', ARGV[2], 'b', ARGV[3], 'm', now())
redis.call('PUBLISH', ARGV[4], '')
return 1
"""
)

# --- flows: KEYS beats, flows, then version or state ------------------------------------------------------------------

# The two hashes as JSON, each a list of names and values, and now: quick to read however many there are.
READ_FLOWS: Final = (
    _NOW
    + """
return {cjson.encode(redis.call('HGETALL', KEYS[2])), cjson.encode(redis.call('HGETALL', KEYS[1])), now()}
"""
)

# ARGV flow. Nothing; record, beat (empty if there is none), now, note, then partitions and deliveries in turn.
READ_FLOW: Final = (
    _NOW
    + _SEALED
    + """
local record = redis.call('HGET', KEYS[2], ARGV[1])
if not record then return false end
local prefix = ARGV[1] .. ' '
local note = redis.call('HGET', KEYS[2], prefix .. 'note') or ''
local found = {record, redis.call('HGET', KEYS[1], ARGV[1]) or '', now(), note}
local partitions = redis.call('HGET', KEYS[2], prefix)
for partition in string.gmatch(partitions and opened(KEYS[2], prefix, partitions) or '', '%S+') do
  found[#found + 1] = partition
  found[#found + 1] = redis.call('HGET', KEYS[2], prefix .. partition) or ''
end
return found
"""
)

# KEYS beats. The hash as JSON, and now.
READ_BEATS: Final = (
    _NOW
    + """
return {cjson.encode(redis.call('HGETALL', KEYS[1])), now()}
"""
)

# ARGV flow, instance, version, channel, replaced instance, replaced count, record, then partitions and deliveries.
# 1: done.
BIND: Final = (
    _NOW
    + _SEALED
    + _STORE
    + _FORGET
    + """
local beat = redis.call('HGET', KEYS[1], ARGV[1])
if beat and redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then
  local instance, count, bound = string.match(opened(KEYS[1], ARGV[1], beat), '^(%S+) (%d+) %d+ (%d) %d+$')
  if bound == '1' and instance == ARGV[2] then return 1 end
  if instance ~= ARGV[5] or count ~= ARGV[6] then return 0 end
end
redis.call('HSET', KEYS[1], ARGV[1], sealed(ARGV[1], ARGV[2] .. ' 0 ' .. now() .. ' 1 0'))
forget()
redis.call('HSET', KEYS[2], ARGV[1], ARGV[7])
store(8)
redis.call('SET', KEYS[3], ARGV[3])
redis.call('PUBLISH', ARGV[4], '')
return 1
"""
)

# KEYS beats, flows, state. ARGV flow, instance. 0: not bound; else the state's token, or nothing.
BEAT: Final = (
    _MOVED
    + """
if moved() == 0 then return 0 end
return redis.call('HGET', KEYS[3], 't')
"""
)

# KEYS beats, flows, version, state. ARGV flow, instance, sequence, version, token, then partitions and deliveries.
# 0: not bound, 1: the state has changed, 2: stored, 3: late.
DELIVER: Final = (
    _MOVED
    + _STORE
    + """
local done = moved(ARGV[3])
if done ~= 1 then return done end
if redis.call('HGET', KEYS[4], 't') ~= ARGV[5] then return 1 end
store(6)
redis.call('SET', KEYS[3], ARGV[4])
return 2
"""
)

# ARGV flow, instance, sequence, version, channel, then partitions and deliveries. 0: not bound, 1: stored, 3: late.
REPORT: Final = (
    _MOVED
    + _STORE
    + """
local done = moved(ARGV[3])
if done ~= 1 then return done end
store(6)
redis.call('SET', KEYS[3], ARGV[4])
redis.call('PUBLISH', ARGV[5], '')
return 1
"""
)

# KEYS beats, flows, version. ARGV flow, instance, sequence, version, field, note. 0: not bound, 1: stored, 3: late.
NOTE: Final = (
    _MOVED
    + """
local done = moved(ARGV[3])
if done ~= 1 then return done end
if ARGV[6] == '' then
  redis.call('HDEL', KEYS[2], ARGV[5])
else
  redis.call('HSET', KEYS[2], ARGV[5], ARGV[6])
end
redis.call('SET', KEYS[3], ARGV[4])
return 1
"""
)

# ARGV flow, instance, version, channel.
UNBIND: Final = (
    _SEALED
    + """
local beat = redis.call('HGET', KEYS[1], ARGV[1])
if not beat then return 0 end
local instance, rest, bound = string.match(opened(KEYS[1], ARGV[1], beat), '^(%S+) (%d+ %d+) (%d) %d+$')
if instance ~= ARGV[2] or bound ~= '1' then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], sealed(ARGV[1], instance .. ' ' .. rest .. ' 0 0'))
redis.call('SET', KEYS[3], ARGV[3])
redis.call('PUBLISH', ARGV[4], '')
return 1
"""
)

# KEYS beats, flows, version, state. ARGV flow, instance, version, token. A record whose beat is lost goes too: nobody
# can be bound to it. 0: the state has changed.
FORGET_FLOW: Final = (
    _SEALED
    + _FORGET
    + """
local beat = redis.call('HGET', KEYS[1], ARGV[1])
if redis.call('HGET', KEYS[4], 't') ~= ARGV[4] then return 0 end
if beat and string.match(opened(KEYS[1], ARGV[1], beat), '^(%S+) ') ~= ARGV[2] then return 1 end
forget()
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('SET', KEYS[3], ARGV[3])
return 1
"""
)

# --- the lease: KEYS leader, state, version, beats --------------------------------------------------------------------

# Nothing; body, time, now, token, beat.
READ_LEASE: Final = (
    _NOW
    + """
local body = redis.call('HGET', KEYS[1], 'b')
if not body then return false end
local token, beat = redis.call('HGET', KEYS[1], 't'), redis.call('HGET', KEYS[1], 'n')
return {body, redis.call('HGET', KEYS[1], 'm'), now(), token, beat}
"""
)

# ARGV expected token, expected beat, token, beat, body. 1: done.
TAKE_LEASE: Final = (
    _NOW
    + """
if (redis.call('HGET', KEYS[1], 't') or '') ~= ARGV[1] then return 0 end
if (redis.call('HGET', KEYS[1], 'n') or '') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 't', ARGV[3], 'n', ARGV[4], 'b', ARGV[5], 'm', now())
return 1
"""
)

# ARGV token, beat, body. 0: somebody else's; the state's token, the records' version, the beats as one text, now.
RENEW_LEASE: Final = (
    _NOW
    + """
if redis.call('HGET', KEYS[1], 't') ~= ARGV[1] then return 0 end
if tonumber(redis.call('HGET', KEYS[1], 'n')) >= tonumber(ARGV[2]) then return 0 end
local time = now()
redis.call('HSET', KEYS[1], 'n', ARGV[2], 'b', ARGV[3], 'm', time)
return {
  redis.call('HGET', KEYS[2], 't'),
  redis.call('GET', KEYS[3]),
  table.concat(redis.call('HGETALL', KEYS[4]), '\\n'),
  time,
}
"""
)

# ARGV token.
RELEASE_LEASE: Final = """
if redis.call('HGET', KEYS[1], 't') ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
return 1
"""

# --- who has what: KEYS ownership -------------------------------------------------------------------------------------

LIST_OWNERSHIP: Final = """
return cjson.encode(redis.call('HGETALL', KEYS[1]))
"""

# ARGV partition, expected version, new version, rest, and so on. The time, then the partitions that were claimed.
CLAIM_OWNERSHIP: Final = (
    _NOW
    + _SEALED
    + """
local time = now()
local claimed = {time}
for at = 1, #ARGV, 4 do
  local found = redis.call('HGET', KEYS[1], ARGV[at])
  if (found and string.match(found, '^(%S+) ') or '') == ARGV[at + 1] then
    redis.call('HSET', KEYS[1], ARGV[at], sealed(ARGV[at], ARGV[at + 2] .. ' ' .. time .. ' ' .. ARGV[at + 3]))
    claimed[#claimed + 1] = ARGV[at]
  end
end
return claimed
"""
)

# --- the rest ---------------------------------------------------------------------------------------------------------

# ARGV channels. No key is used; one is given so that a cluster finds the node.
ANNOUNCE: Final = """
for _, channel in ipairs(ARGV) do redis.call('PUBLISH', channel, '') end
return 1
"""

DROP_GROUP: Final = """
return redis.call('DEL', unpack(KEYS))
"""
