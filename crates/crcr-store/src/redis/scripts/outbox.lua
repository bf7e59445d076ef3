-- The oldest facts, for one relay at a time: while it copies them, others get none. If two copied the
-- same facts after all, the second copy would replace the first.
local reader, milliseconds, most = argument(), argument(), argument()
local name = prefix .. ':outbox'
local holder = call('GET', prefix .. ':outbox_reader')
if holder and holder ~= reader then return {} end
local facts = call('XRANGE', name, '-', '+', 'COUNT', most)
if #facts > 0 then
  -- Copying goes on when the server is full: it makes room.
  redis.pcall('SET', prefix .. ':outbox_reader', reader, 'PX', milliseconds)
end
local found = {}
for i, fact in ipairs(facts) do found[i] = {fact[1], fact[2][2]} end
return found
